#!/bin/sh
# The documentation as a site, in .build/site; MkDocs is installed when it is missing.
set -eu

.venv/bin/python -c 'import material' 2>/dev/null || .venv/bin/python -m pip install --quiet --editable '.[docs]'
.venv/bin/python -m tests.pages.reference.site
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
