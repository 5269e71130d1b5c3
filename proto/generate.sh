#!/bin/sh
# Writes the Python code of every .proto beside it. With --check: compares instead, and changes nothing.
# With --release: writes released/VERSION.binpb, the descriptors that later versions must stay compatible with.
set -eu

cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH" # protoc looks for its plugins there
target=proto
if [ "${1:-}" = --release ]; then
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    # shellcheck disable=SC2046  # a list of words
    exec python -m grpc_tools.protoc -Iproto --include_imports "--descriptor_set_out=proto/released/$version.binpb" \
        $(find proto/flannelette -name '*.proto' | sort)
fi
if [ "${1:-}" = --check ]; then
    target=$(mktemp -d)
    trap 'rm -rf "$target"' EXIT
fi

# shellcheck disable=SC2046  # a list of words
python -m grpc_tools.protoc -Iproto --python_out="$target" --grpc_python_out="$target" \
    --mypy_out="quiet:$target" --mypy_grpc_out="quiet,only_async:$target" $(find proto/flannelette -name '*.proto' | sort)

if [ "$target" != proto ]; then
    diff --recursive --unified --exclude='*.proto' --exclude=py.typed --exclude=__init__.py --exclude=services --exclude=__pycache__ \
        proto/flannelette "$target/flannelette" || {
        echo "The generated code is not what the .proto files give: run make proto and commit it." >&2
        exit 1
    }
fi
