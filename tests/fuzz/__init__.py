"""Fuzzing: bytes of anybody's making into every parser and every call that takes them, with guidance by coverage.

A target is a function of bytes in `targets/`. It raises when a parser raises anything but its documented errors, and
when what was read has an effect beyond its one object: a bad lease, node, key, rule or message changes nothing about
the others. Each case has a limit of CPU time, each run one of memory. `corpus/TARGET` has the seeds, one case a file;
those named `found-...` have once failed. `make test` replays them and tries 500 changes of them for each target,
`make soak` a million, `make fuzz TARGET=... SECONDS=...` as many as there is time for, guided by coverage where
atheris is installed (the extra `fuzz`).
"""
