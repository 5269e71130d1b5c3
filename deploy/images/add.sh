#!/bin/sh
# Installs this tree (/wheel), and leaves in /more what was installed since the file /before was made: what an image adds
# to the layer that all services share.
set -eu
pip --python /opt/flannelette/bin/python install --quiet --no-deps --force-reinstall /wheel/*.whl
mkdir /more
cd /opt/flannelette
find . ! -type d -cnewer /before -print0 | tar --create --null --files-from=- | tar --extract --directory=/more
