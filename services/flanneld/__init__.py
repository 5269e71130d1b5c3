"""`flannelette flanneld`: the three services as children of one process, started with flanneld's own flags."""
