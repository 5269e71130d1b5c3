"""Rules in the notation of iptables, and the difference between the desired and the actual rules of a table. Pure.

Shared by the two kinds of iptables; nothing here runs a program or talks to the kernel.
"""
