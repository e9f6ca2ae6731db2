"""The manifests of docs/kubernetes: kubernetes_test.py TRIREME SOURCE.

What a schema cannot know: that the parts of a manifest fit together, and that `trireme train` takes its command
as it is written. What it says is compared with docs/operations.md, whose exit codes and command they use.
"""

import pathlib
import subprocess
import sys
import tempfile

import yaml

TRIREME, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])


def expect(condition, *what):
    if not condition:
        sys.exit("kubernetes_test: " + " ".join(map(str, what)))


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def command_of(container, index):
    """The words of `trireme train` as the container starts it."""
    words = container["command"] + container.get("args", [])
    if words[:2] == ["sh", "-c"]:
        script = words[2].split("exec ", 1)[1].replace("\\\n", " ").replace("$JOB_COMPLETION_INDEX", str(index))
        words = script.split()
    expect(words[:2] == ["trireme", "train"], "expected trireme train, found", words)
    return words[1:]


def settings_of(words):
    with tempfile.TemporaryDirectory() as folder:
        # What the manifest has in its volume.
        (pathlib.Path(folder) / "book.txt").write_text("to be or not to be\n" * 200)
        shown = subprocess.run([TRIREME, *words, "--print-config"], cwd=folder, capture_output=True, text=True)
    expect(shown.returncode == 0, "exit code", shown.returncode, "of", *words, shown.stderr)
    return yaml.safe_load(shown.stdout)  # JSON is YAML


def check_mounts(pod, documents):
    claims = {claim["metadata"]["name"] for claim in of_kind(documents, "PersistentVolumeClaim")}
    volumes = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
    expect(set(volumes.values()) <= claims, "expected claims", claims, "found", volumes)
    (container,) = pod["containers"]
    for mount in container["volumeMounts"]:
        expect(mount["name"] in volumes, "no volume", mount["name"])
    return [mount["mountPath"] for mount in container["volumeMounts"]]


def check_job(job, documents):
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    machines = spec.get("completions", 1)
    expect(spec.get("parallelism", 1) == machines, "all machines have to run at the same time")
    expect(pod["restartPolicy"] == "Never", "podFailurePolicy needs restartPolicy Never")
    expect(pod["terminationGracePeriodSeconds"] > 60, "a run has 60 s to end in good order")
    rules = spec["podFailurePolicy"]["rules"]
    fails = [rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob"]
    expect([(rule["containerName"], rule["values"]) for rule in fails] == [(container["name"], [2])], "exit code 2 is usage")
    mounts = check_mounts(pod, documents)
    words = command_of(container, index=0)
    settings = settings_of(words)
    expect(settings["save_every"] > 0, "without --save-every a run cannot be resumed")
    run = pathlib.PurePosixPath(container["workingDir"]) / settings["run"]
    expect(any(run.is_relative_to(mount) for mount in mounts), run, "is lost with the pod")
    if machines == 1:
        return
    expect(spec["completionMode"] == "Indexed", "machines have numbers")
    expect(words[words.index("--nnodes") + 1] == str(machines), "--nnodes", words)
    host, port = words[words.index("--rendezvous") + 1].split(":")
    (service,) = of_kind(documents, "Service")
    name = service["metadata"]["name"]
    expect(host == f"{job['metadata']['name']}-0.{name}" and pod["subdomain"] == name, "machine 0 is not", host)
    expect(service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"], "names of pods that begin")
    expect(service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}, service["spec"]["selector"])
    expect([str(each["port"]) for each in service["spec"]["ports"]] == [port], port)
    (claim,) = of_kind(documents, "PersistentVolumeClaim")
    expect(claim["spec"]["accessModes"] == ["ReadWriteMany"], "the machines share the run")
    expect("TRIREME_TOKEN" in [each["name"] for each in container["env"]], "no token")


def main():
    files = sorted((SOURCE / "docs" / "kubernetes").glob("*.yaml"))
    expect(len(files) >= 2, "expected manifests, found", files)
    operations = (SOURCE / "docs" / "operations.md").read_text()
    for file in files:
        expect(f"(kubernetes/{file.name})" in operations, "docs/operations.md does not know", file.name)
        documents = list(yaml.safe_load_all(file.read_text()))
        (job,) = of_kind(documents, "Job")
        check_job(job, documents)
        print(f"{file.name}: in order")


main()
