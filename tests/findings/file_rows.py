"""What is wrong with the files of the container runtime's network plugins, one row each: tried on a directory."""

from typing import Final

from tests.findings.fault import SilentFault

_CONFIGURATION: Final = "{root}/etc/cni/net.d/10-flannel.conflist"


def _plugin(act: str, cause: str, cure: str, undo: str = "", what: str = "") -> SilentFault:
    return SilentFault(
        act,
        "cni-plugin",
        f"The CNI plugin portmap, which {_CONFIGURATION} calls, is not in {{root}}/opt/cni/bin; {cause}",
        cure,
        is_told=False,
        undo=undo,
        what=what,
        problem="No new pod starts on this node.",
        evidence="ls {root}/opt/cni/bin/portmap: No such file or directory",
    )


FILE_FAULTS: Final = {
    "plugin-missing": _plugin(
        "rm {root}/opt/cni/bin/portmap",
        "install it: `apt-get install containernetworking-plugins`, or github.com/containernetworking/plugins.",
        "",
        undo="touch {root}/opt/cni/bin/portmap",
    ),
    "plugin-elsewhere": _plugin(
        "mkdir -p {root}/usr/lib/cni {root}/etc/containerd && mv {root}/opt/cni/bin/portmap {root}/usr/lib/cni/ && "
        "echo '[plugins.cri.cni]\nbin_dir = \"/opt/cni/bin\"' > {root}/etc/containerd/config.toml",
        "it is in {root}/usr/lib/cni.",
        "ln -s {root}/usr/lib/cni/portmap {root}/opt/cni/bin/",
        what='containerd has `bin_dir = "/opt/cni/bin"`, and Debian\'s plugins are in `/usr/lib/cni`',
    ),
    "configuration-before-flannels": SilentFault(
        'echo \'{{"name":"net","type":"bridge"}}\' > {root}/etc/cni/net.d/05-other.conf',
        "cni-configuration",
        "The container runtime takes {root}/etc/cni/net.d/05-other.conf, which comes before 10-flannel.conflist by "
        "name.",
        "mv {root}/etc/cni/net.d/05-other.conf {root}/etc/cni/net.d/05-other.conf.disabled",
        is_told=False,
        problem="New pods of this node are not in its subnet, and reach no pod of another node.",
        evidence="ls {root}/etc/cni/net.d: 05-other.conf 10-flannel.conflist",
    ),
    "configuration-broken": SilentFault(
        "mkdir -p {root}/etc/containerd && echo 'version = 3' > {root}/etc/containerd/config.toml && "
        "echo '{{' > {root}/etc/cni/net.d/05-other.conf",
        "cni-configuration",
        "containerd cannot read {root}/etc/cni/net.d/05-other.conf, and then reads no other CNI configuration: it is "
        "no JSON (line 2).",
        "mv {root}/etc/cni/net.d/05-other.conf {root}/etc/cni/net.d/05-other.conf.disabled",
        is_told=False,
        what="`echo '{' > /etc/cni/net.d/05-other.conf`, with containerd",
        problem="No new pod starts on this node.",
        evidence="{root}/etc/cni/net.d/05-other.conf: it is no JSON (line 2)",
    ),
    "configuration-unread": SilentFault(
        "mkdir -p {root}/etc/containerd {root}/var/cni && echo '[plugins.cri.cni]\nconf_dir = \"/var/cni\"' > "
        "{root}/etc/containerd/config.toml && "
        'echo \'{{"name":"net","type":"bridge"}}\' > {root}/var/cni/50-net.conf',
        "cni-configuration",
        "The container runtime takes CNI configurations from {root}/var/cni, as {root}/etc/containerd/config.toml "
        "says, and flannel's is {root}/etc/cni/net.d/10-flannel.conflist. Install it there (--cni-install-path, in "
        "the chart flannel.cniConfDir).",
        "ln -s {root}/etc/cni/net.d/10-flannel.conflist {root}/var/cni/",
        is_told=False,
        what='containerd has `conf_dir = "/var/cni"`',
        problem="New pods of this node are not in its subnet, or do not start.",
        evidence="{root}/etc/containerd/config.toml: conf_dir",
    ),
    "configuration-left": SilentFault(
        'echo \'{{"name":"k8s-pod-network","type":"calico"}}\' > {root}/etc/cni/net.d/20-calico.conf',
        "cni-leftover",
        "{root}/etc/cni/net.d/20-calico.conf is left of Calico.",
        "mv {root}/etc/cni/net.d/20-calico.conf {root}/etc/cni/net.d/20-calico.conf.disabled",
        is_told=False,
        problem="New pods are in the network of Calico while 10-flannel.conflist is not there, as after a boot of a "
        "node of Kubernetes.",
        evidence="{root}/etc/cni/net.d/20-calico.conf: calico",
    ),
}
