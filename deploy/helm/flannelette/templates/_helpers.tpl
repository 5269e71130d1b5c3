{{/* Labels of every object: flannel's chart's. */}}
{{- define "flannelette.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.global.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The DaemonSet's selector, which no upgrade can change: the one that is there. */}}
{{- define "flannelette.selector" -}}
{{- $there := lookup "apps/v1" "DaemonSet" .Release.Namespace "kube-flannel-ds" -}}
{{- if .Values.flannelette.selector -}}
{{ toYaml .Values.flannelette.selector }}
{{- else if $there -}}
{{ toYaml $there.spec.selector.matchLabels }}
{{- else -}}
app: flannel
tier: node
app.kubernetes.io/name: flannel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- end -}}

{{/* labels and annotations of an object. Takes the root, and of the values the object's own, most special first. */}}
{{- define "flannelette.metadata" -}}
{{- $labels := dict -}}
{{- $annotations := dict -}}
{{- range compact .own -}}
{{- $labels = merge $labels (.labels | default dict) -}}
{{- $annotations = merge $annotations (.annotations | default dict) -}}
{{- end -}}
{{- $labels = merge $labels (include "flannelette.labels" .root | fromYaml) -}}
{{- $annotations = merge $annotations (.root.Values.global.commonAnnotations | default dict) -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The arguments of one container: the share of its services of flannel.args, by the rules of Go's package flag. */}}
{{- define "flannelette.args" -}}
{{- $known := dict -}}
{{- range $name, $flags := .root.Files.Get "files/flags.yaml" | fromYaml -}}
{{- $_ := set $known $name (regexSplit "\\s+" $flags -1) -}}
{{- end -}}
{{- $_ := set $known "flanneld" (concat $known.lease $known.dataplane $known.masq) -}}
{{- $awaits := "" -}}
{{- range $word := .root.Values.flannel.args -}}
{{- $flag := $word | toString | regexFind "^--?[^-=][^=]*" | trimPrefix "-" | trimPrefix "-" -}}
{{- if $awaits -}}
{{- if has $awaits (get $known $.service) }}
- {{ $word | quote }}
{{- end -}}
{{- $awaits = "" -}}
{{- else if not $flag -}}
{{- fail (printf "flannel.args: %q is not a flag" $word) -}}
{{- else -}}
{{- if not (or (has $flag $known.lease) (has $flag $known.dataplane) (has $flag $known.masq)) -}}
{{- fail (printf "flannel.args: no service takes --%s here (ports for probes: flannel.healthz.port)" $flag) -}}
{{- end -}}
{{- if has $flag (get $known $.service) }}
- {{ $word | quote }}
{{- end -}}
{{- if not (or (contains "=" $word) (has $flag $known.booleans)) -}}
{{- $awaits = $flag -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The port for probes of one service; nothing where there are none. All pods are in the host's network: a central lease
service, and one beside flannelette-cloud, may be where a node's own is. */}}
{{- define "flannelette.port" -}}
{{- $first := int .root.Values.flannel.healthz.port -}}
{{- if $first -}}
{{- $lease := .root.Values.flannelette.central.enabled | ternary 3 0 -}}
{{- add $first (dict "lease" $lease "dataplane" 1 "masq" 2 "cloud" 4 "clouds-lease" 5 | dig .service 0) -}}
{{- end -}}
{{- end -}}

{{/* The image of one service. */}}
{{- define "flannelette.image" -}}
{{- $image := .root.Values.flannelette.image -}}
{{- printf "%sflannelette-%s:%s" $image.registry (eq .service "flanneld" | ternary "all" .service) ($image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}

{{/* The probes of one service, on loopback if it listens everywhere. */}}
{{- define "flannelette.probes" -}}
{{- $healthz := .root.Values.flannel.healthz -}}
{{- $listens := .root.Values.flannelette.healthzIP -}}
{{- $host := get (dict "0.0.0.0" "127.0.0.1" "::" "::1") $listens | default $listens | quote -}}
{{- with include "flannelette.port" . -}}
startupProbe:
  httpGet: {host: {{ $host }}, port: {{ . }}, path: /healthz}
  periodSeconds: 1
  failureThreshold: 180
livenessProbe:
  httpGet: {host: {{ $host }}, port: {{ . }}, path: /healthz}
  {{- with $healthz.livenessProbe }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
readinessProbe:
  httpGet: {host: {{ $host }}, port: {{ . }}, path: /readyz}
  {{- with $healthz.readinessProbe }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* What a service without rights may do. */}}
{{- define "flannelette.unprivileged" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What is alike in the containers of all three services, and of all in one, flanneld. Takes the root, the service, and
what it may use. */}}
{{- define "flannelette.container" -}}
{{- $values := .root.Values -}}
{{- $central := $values.flannelette.central -}}
{{- $clusters := $values.flannelette.clusters -}}
{{- $port := include "flannelette.port" . -}}
{{- $dataplane := has .service (list "dataplane" "flanneld") -}}
{{- $lease := has .service (list "lease" "flanneld") -}}
name: {{ .service }}
image: {{ include "flannelette.image" . }}
args:
  {{- include "flannelette.args" . | trim | nindent 2 }}
  {{- if and $dataplane (include "flannelette.charon" .root) }}
  - --charon-socket=/run/flannelette/charon.vici
  {{- end }}
  {{- if and $dataplane (not $values.flannel.skipCNIConfigInstallation) }}
  - --cni-install-path=/etc/cni/net.d/10-flannel.conflist
  {{- end }}
  {{- if and $central.enabled (eq .service "lease") }}
  - --central
  - --listen=unix:/run/flannelette-lease/lease.sock,0.0.0.0:7070
  - --tls-cert-file=/etc/flannelette/tls/tls.crt
  - --tls-key-file=/etc/flannelette/tls/tls.key
  - --tls-ca-file=/etc/flannelette/tls/ca.crt
  {{- end }}
  {{- if $lease }}
  {{- range $clusters.imports }}
  - {{ printf "--import=%s" . | quote }}
  {{- end }}
  {{- range $clusters.exports }}
  - --export={{ . }}
  {{- end }}
  {{- end }}
  {{- with $port }}
  - --healthz-port={{ . }}
  {{- end }}
env:
  {{- if not (and $central.enabled (eq .service "lease")) }}
  - name: NODE_NAME # first: the others name it
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- if $central.enabled }}
  - {name: FLANNELD_LEASE_ADDRESS, value: "{{ $central.clusterIP | contains ":" | ternary (printf "[%s]" $central.clusterIP) $central.clusterIP }}:7070"}
  - {name: FLANNELD_TLS_CERT_FILE, value: /etc/flannelette/tls/$(NODE_NAME)-{{ .service }}.crt}
  - {name: FLANNELD_TLS_KEY_FILE, value: /etc/flannelette/tls/$(NODE_NAME)-{{ .service }}.key}
  - {name: FLANNELD_TLS_CA_FILE, value: /etc/flannelette/tls/ca.crt}
  {{- end }}
  {{- end }}
  - {name: FLANNELD_HEALTHZ_IP, value: {{ $values.flannelette.healthzIP | quote }}}
{{- with .resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "flannelette.probes" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The lease service, which may do nothing: the same in a node's pod and in one of its own. */}}
{{- define "flannelette.lease" -}}
{{- include "flannelette.container" . }}
securityContext:
  {{- include "flannelette.unprivileged" . | nindent 2 }}
volumeMounts:
  - {name: lease-socket, mountPath: /run/flannelette-lease}
  - {name: flannel-cfg, mountPath: /etc/kube-flannel, readOnly: true}
  {{- if .root.Values.flannelette.central.enabled }}
  - {name: tls, mountPath: /etc/flannelette/tls, readOnly: true}
  {{- end }}
  {{- if include "flannelette.clusters" .root }}
  - {name: clusters, mountPath: /etc/flannelette/clusters, readOnly: true}
  {{- end }}
  - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{/* The certificates for other clusters. */}}
{{- define "flannelette.clusters" -}}
{{- with (.Values.flannelette.clusters).secret -}}
- name: clusters
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end -}}
{{- end -}}

{{/* The service account's token, for who asks the API server. */}}
{{- define "flannelette.token" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{/* Whether charon is a container of the pods. */}}
{{- define "flannelette.charon" -}}
{{- if and (eq .Values.flannel.backend "ipsec") (dig "charon" "enabled" true .Values.flannelette) -}}true{{- end -}}
{{- end -}}

{{/* net-conf.json: flannel's keys. Options of the backend are those of flannel's chart, then any others. */}}
{{- define "flannelette.network" -}}
{{- $v := .Values -}}
{{- $f := .Values.flannel -}}
{{- $backend := dict "Type" $f.backend -}}
{{- range $name, $key := get (.Files.Get "files/options.yaml" | fromYaml) $f.backend | default dict -}}
{{- $value := index $f $key -}}
{{- if or $value (and (eq $name "VNI") (not (kindIs "invalid" $value))) -}}{{/* VNI 0 is flannel.0 */}}
{{- $_ := set $backend $name $value -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $f.backendOptions | default dict -}}
{{- $_ := set $backend $name $value -}}
{{- end -}}
{{- $network := dict "EnableNFTables" $f.enableNFTables "Backend" $backend -}}
{{- if $v.podCidr -}}
{{- $_ := set $network "Network" $v.podCidr -}}
{{- else -}}
{{- $_ := set $network "EnableIPv4" false -}}
{{- end -}}
{{- if $v.podCidrv6 -}}
{{- $_ := set $network "IPv6Network" $v.podCidrv6 -}}
{{- $_ := set $network "EnableIPv6" true -}}
{{- end -}}
{{- $network | toPrettyJson -}}
{{- end -}}
