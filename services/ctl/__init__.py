"""The flannelette command line."""
