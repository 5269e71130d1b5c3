{{/* Pods that nodes need before they have an overlay: rather on nodes of the control plane. */}}
{{- define "flannelette.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: kubernetes.io/os, operator: In, values: [linux]}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
          - {key: node-role.kubernetes.io/control-plane, operator: Exists}
{{- end -}}

{{/* What is alike in the specs of such pods, which are in the host's network. */}}
{{- define "flannelette.early" -}}
priorityClassName: system-cluster-critical
terminationGracePeriodSeconds: 5
tolerations: # a node is like that until it has a network
  - {key: node.kubernetes.io/not-ready, operator: Exists}
  - {key: node.kubernetes.io/network-unavailable, operator: Exists}
  - {key: node-role.kubernetes.io/control-plane, operator: Exists}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}
