{{- define "remote.suffix" -}}
{{- if and .Values.revision (ne .Values.revision "default") -}}-{{ .Values.revision }}{{- end -}}
{{- end -}}

{{- define "remote.revision" -}}
{{- .Values.revision | default "default" -}}
{{- end -}}

{{- define "remote.pilot" -}}
istiod{{ include "remote.suffix" . }}
{{- end -}}

{{- define "remote.labels" -}}
app.kubernetes.io/name: istiod-remote
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: pilothouse
app.kubernetes.io/version: {{ .Chart.AppVersion | trunc 63 | trimSuffix "-" | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* As Istio's charts, webhooks outside istio-system have the namespace in their name. */}}
{{- define "remote.injector" -}}
istio-sidecar-injector{{ include "remote.suffix" . }}{{ if ne .Release.Namespace "istio-system" }}-{{ .Release.Namespace }}{{ end }}
{{- end -}}

{{/* The path says where the Pods are. */}}
{{- define "remote.path" -}}
/inject/cluster/{{ required "clusterName is needed with remotePilotAddress: the name of this cluster" .Values.clusterName }}
{{- with .Values.network }}/net/{{ . }}{{ end }}
{{- end -}}

{{/* What every webhook has in common. */}}
{{- define "remote.webhook" -}}
admissionReviewVersions: [v1]
clientConfig:
  service:
    name: {{ include "remote.pilot" . }}
    namespace: {{ .Release.Namespace }}
    path: {{ include "remote.path" . }}
    port: 443
failurePolicy: Fail
reinvocationPolicy: Never
rules:
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE]
  resources: [pods]
  scope: Namespaced
sideEffects: None
{{- end -}}
