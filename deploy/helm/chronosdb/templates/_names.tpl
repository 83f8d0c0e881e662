{{- /* The name of everything: the release's, which usually says chronosdb already. */ -}}
{{- define "chronosdb.name" -}}
{{- if contains "chronosdb" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-chronosdb" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "chronosdb.selector" -}}
app.kubernetes.io/name: chronosdb
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "chronosdb.labels" -}}
{{ include "chronosdb.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "chronosdb.redisSelector" -}}
app.kubernetes.io/name: redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "chronosdb.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "chronosdb.usesRedis" -}}
{{- if eq (dig "store" "kind" "memory" .Values.settings) "redis" }}true{{ end }}
{{- end }}

{{- define "chronosdb.bundlesRedis" -}}
{{- if and (include "chronosdb.usesRedis" .) .Values.redis.bundled (not .Values.redis.url) (not .Values.redis.existingSecret) }}true{{ end }}
{{- end }}

{{- /* The settings file: the user's, and on top of it what only the chart can know. */ -}}
{{- define "chronosdb.settings" -}}
{{- $own := dict
      "grpc" (dict "listen" "0.0.0.0:50051")
      "http" (dict "listen" "0.0.0.0:8000")
      "rules" (dict "path" "/etc/chronosdb/rules") }}
{{- if .Values.redis.url }}
{{- $_ := set $own "store" (dict "redis" (dict "url" .Values.redis.url)) }}
{{- else if include "chronosdb.bundlesRedis" . }}
{{- $_ := set $own "store" (dict "redis" (dict "url" (printf "redis://%s-redis:6379" (include "chronosdb.name" .)))) }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.settings) $own) }}
{{- end }}

{{- define "chronosdb.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}
