"""`flannelette flanneld`: a node's three services with flanneld's own flags, in one process or as its children."""
