{{- define "gateway.name" -}}
{{- .Values.name | default .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gateway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "gateway.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "gateway.selector" -}}
app: {{ .Values.labels.app | default (include "gateway.name" .) | quote }}
istio: {{ .Values.labels.istio | default (include "gateway.name" . | trimPrefix "istio-") | quote }}
{{- end -}}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: pilothouse
app.kubernetes.io/version: {{ .Chart.AppVersion | trunc 63 | trimSuffix "-" | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.networkGateway }}
topology.istio.io/network: {{ . | quote }}
{{- end }}
{{- with omit .Values.labels "app" "istio" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The value "annotations", and those of one object. */}}
{{- define "gateway.annotations" -}}
{{- with . -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}
