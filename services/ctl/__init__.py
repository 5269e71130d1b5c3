"""The `flannelette` command line: shows, repairs and removes what the services of a node keep.

A command is one file of `commands`: its options, its calls and what it prints. Beside them is what several share.
Services are called over gRPC only.
"""
