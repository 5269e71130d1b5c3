"""The `flannelette` command line: shows, repairs and removes what the services of a node keep.

Each part imports only those below it: main, cli, live, diagnose, commands, follow, answers, render, node_health,
connect. Services
are called over gRPC only.
"""
