{{/* The suffix of the names of a revision's objects: empty for the default one. */}}
{{- define "pilothouse.suffix" -}}
{{- if and .Values.revision (ne .Values.revision "default") -}}-{{ .Values.revision }}{{- end -}}
{{- end -}}

{{- define "pilothouse.revision" -}}
{{- .Values.revision | default "default" -}}
{{- end -}}

{{/* Name of the Deployment, the Service and the ServiceAccount, as istioctl and injected Pods expect it. */}}
{{- define "pilothouse.name" -}}
istiod{{ include "pilothouse.suffix" . }}
{{- end -}}

{{/* Cluster-wide names end with the namespace: there may be a control plane in each of two namespaces. */}}
{{- define "pilothouse.clusterRole" -}}
istiod-clusterrole{{ include "pilothouse.suffix" . }}-{{ .Release.Namespace }}
{{- end -}}

{{/* As Istio's charts, webhooks outside istio-system have the namespace in their name. */}}
{{- define "pilothouse.webhookSuffix" -}}
{{- if ne .Release.Namespace "istio-system" -}}-{{ .Release.Namespace }}{{- end -}}
{{- end -}}

{{- define "pilothouse.injector" -}}
istio-sidecar-injector{{ include "pilothouse.suffix" . }}{{ include "pilothouse.webhookSuffix" . }}
{{- end -}}

{{- define "pilothouse.validator" -}}
istio-validator{{ include "pilothouse.suffix" . }}-{{ .Release.Namespace }}
{{- end -}}

{{/* Labels of every object; "app" differs. */}}
{{- define "pilothouse.labels" -}}
app.kubernetes.io/name: istiod
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: pilothouse
app.kubernetes.io/version: {{ .Chart.AppVersion | trunc 63 | trimSuffix "-" | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
istio.io/rev: {{ include "pilothouse.revision" . | quote }}
{{- end -}}

{{/* The default revision is selected by the labels of Istio's, others by their revision too. */}}
{{- define "pilothouse.selector" -}}
app: istiod
{{- if include "pilothouse.suffix" . }}
istio.io/rev: {{ .Values.revision | quote }}
{{- else }}
istio: pilot
{{- end }}
{{- end -}}

{{- define "pilothouse.tag" -}}
{{- .Values.global.tag | default .Chart.AppVersion -}}
{{- end -}}

{{- define "pilothouse.image" -}}
{{- with .Values.global.hub }}{{ . }}/{{ end }}{{ .Values.image }}:{{ include "pilothouse.tag" . }}
{{- end -}}

{{- define "pilothouse.cluster" -}}
{{- .Values.global.multiCluster.clusterName | default "Kubernetes" -}}
{{- end -}}

{{/* What every webhook that injects has in common. */}}
{{- define "pilothouse.injectorWebhook" -}}
admissionReviewVersions: [v1]
clientConfig:
  service:
    name: {{ include "pilothouse.name" . }}
    namespace: {{ .Release.Namespace }}
    path: /inject
    port: 443
failurePolicy: Fail
reinvocationPolicy: {{ .Values.sidecarInjectorWebhook.reinvocationPolicy }}
rules:
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE]
  resources: [pods]
  scope: Namespaced
sideEffects: None
{{- end -}}

{{/* What every webhook that validates has in common. */}}
{{- define "pilothouse.validatorWebhook" -}}
admissionReviewVersions: [v1]
clientConfig:
  service:
    name: {{ include "pilothouse.name" . }}
    namespace: {{ .Release.Namespace }}
    path: /validate
    port: 443
rules:
- apiGroups: [networking.istio.io, security.istio.io, telemetry.istio.io, extensions.istio.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: ["*"]
  scope: Namespaced
sideEffects: None
{{- end -}}

{{/*
The webhooks of one revision or tag: a dict of "root" and "name", the value of istio.io/rev. The name
"default" adds those of the label istio-injection.
*/}}
{{- define "pilothouse.injectorWebhooks" -}}
- name: rev.namespace.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - {key: istio.io/rev, operator: In, values: [{{ .name | quote }}]}
    - {key: istio-injection, operator: DoesNotExist}
  objectSelector:
    matchExpressions:
    - {key: sidecar.istio.io/inject, operator: NotIn, values: ["false"]}
  {{- include "pilothouse.injectorWebhook" .root | nindent 2 }}
- name: rev.object.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - {key: istio.io/rev, operator: DoesNotExist}
    - {key: istio-injection, operator: DoesNotExist}
  objectSelector:
    matchExpressions:
    - {key: sidecar.istio.io/inject, operator: NotIn, values: ["false"]}
    - {key: istio.io/rev, operator: In, values: [{{ .name | quote }}]}
  {{- include "pilothouse.injectorWebhook" .root | nindent 2 }}
{{- if eq .name "default" }}
- name: namespace.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - {key: istio-injection, operator: In, values: [enabled]}
  objectSelector:
    matchExpressions:
    - {key: sidecar.istio.io/inject, operator: NotIn, values: ["false"]}
  {{- include "pilothouse.injectorWebhook" .root | nindent 2 }}
- name: object.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - {key: istio-injection, operator: DoesNotExist}
    - {key: istio.io/rev, operator: DoesNotExist}
  objectSelector:
    matchExpressions:
    - {key: sidecar.istio.io/inject, operator: In, values: ["true"]}
    - {key: istio.io/rev, operator: DoesNotExist}
  {{- include "pilothouse.injectorWebhook" .root | nindent 2 }}
{{- if .root.Values.sidecarInjectorWebhook.enableNamespacesByDefault }}
- name: auto.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - {key: istio-injection, operator: DoesNotExist}
    - {key: istio.io/rev, operator: DoesNotExist}
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, kube-public, kube-node-lease, local-path-storage]}
  objectSelector:
    matchExpressions:
    - {key: sidecar.istio.io/inject, operator: DoesNotExist}
    - {key: istio.io/rev, operator: DoesNotExist}
  {{- include "pilothouse.injectorWebhook" .root | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
