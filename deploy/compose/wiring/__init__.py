"""What a container runtime and a CNI plugin do on a host, for containers that compose started.

A host makes `cni0` from subnet.env and plugs pods into it (`python -m wiring.host`); a pod asks its host for that
(`python -m wiring.pod`). Each needs NET_ADMIN, in its own network namespace only: the pod hands a descriptor of its
namespace over a unix socket, so the host needs neither SYS_ADMIN nor the pod's processes.
"""
