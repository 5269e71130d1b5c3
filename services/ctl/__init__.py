"""The `flannelette` command line: shows, repairs and removes what the services of a node keep.

Each part imports only those below it: main, cli, commands, render, verdict, connect. Services are called over
gRPC only.
"""
