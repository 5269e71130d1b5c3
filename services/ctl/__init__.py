"""The `flannelette` command line: shows, repairs and removes what the services of a node keep."""
