#!/bin/sh
# Installs this tree (/wheel), removes what nothing loads, writes the bill of materials, and leaves in /more what was
# installed since the file /before was made: what an image adds to the layers below it. add.sh NAME
set -eu
environment=/opt/flannelette
pip --python "$environment/bin/python" install --quiet --no-deps --no-compile --force-reinstall /wheel/*.whl
sh /prune.sh "$environment"
"$environment/bin/python" -m compileall -q "$environment/lib" # what is not compiled yet; an image's root may be read-only
mkdir -p "$environment/share/sbom"
/opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-format JSON --pyproject /src/pyproject.toml \
    --output-file "$environment/share/sbom/flannelette-$1.cdx.json" "$environment/bin/python"
mkdir /more
cd "$environment"
find . ! -type d -cnewer /before -print0 | tar --create --null --files-from=- | tar --extract --directory=/more
