"""The gRPC service: status, peers, events, and what an operator can ask for (resync, teardown, hand-over, clean-up).

Translates between messages and the controller. No decision about the kernel is made here.
"""
