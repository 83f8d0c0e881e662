"""Checks objects of the Prometheus operator against its own CRDs, unknown fields included.

    validate_crds.py FOLDER-WITH-CRDS < objects.yaml

Prints a line for each fault; exit code 1 if there is one, or nothing to check.
"""

import pathlib
import sys

import jsonschema
import yaml


def closed(schema):
    """The API server drops unknown fields without a word; here they are faults."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(part) for key, part in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        schema["additionalProperties"] = False
    return schema


def schemas(folder):
    for path in folder.glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())["spec"]
        for version in crd["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            yield (f"{crd['group']}/{version['name']}", crd["names"]["kind"]), closed(spec)


known = dict(schemas(pathlib.Path(sys.argv[1])))
checked, faults = 0, 0
for thing in yaml.safe_load_all(sys.stdin):
    if not thing or not thing["apiVersion"].startswith("monitoring.coreos.com/"):
        continue
    checked += 1
    name = f"{thing['kind']}/{thing['metadata']['name']}"
    validator = jsonschema.Draft7Validator(known[thing["apiVersion"], thing["kind"]])
    for fault in validator.iter_errors(thing["spec"]):
        faults += 1
        print(f"{name}: spec.{'.'.join(map(str, fault.path))}: {fault.message}")
if not checked:
    print("nothing of the Prometheus operator to check")
sys.exit(1 if faults or not checked else 0)
