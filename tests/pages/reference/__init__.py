"""Reference pages, whose tables are made from the code, and the sources of the site that `make site` builds."""
