"""A cluster of five hosts that suffers one fault after another, at random but replayable, under a stream of pings.

`make chaos`, `python -m lab.chaos`. The table of faults says which packets each may cost; every other lost packet,
every difference that stays and everything that grows is a failure.
"""
