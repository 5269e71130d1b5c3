"""Captures packets between this node and a peer, with packet sockets and filters that the kernel runs.

`filter` says which packets, purely; `capture` has the sockets and the limits. Nothing is decoded here.
"""
