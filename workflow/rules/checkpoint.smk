# From a source to the normal form: one safetensors file a layer. Fetching depends on its spec and the source record
# alone, never on code or packages, so that no edit or upgrade downloads a checkpoint again. The steps repeat by
# themselves what a bad connection broke; a job that failed would fail again.


localrules:
    fetch_files,
    resolve,
    fetch_layer,


rule fetch_files:
    output:
        files="results/{model}/checkpoint/files.json",
    log:
        "logs/fetch_files/{model}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        download=1,
    params:
        spec=plan.spec_of("fetch_files"),
    shell:
        "python -m headmaps.steps.fetch_files --spec {params.spec:q} --files {output.files:q} 2>&1 | tee {log:q}"


rule resolve:
    input:
        plan.source_inputs,
    output:
        source="results/{model}/checkpoint/source.json",
    log:
        "logs/resolve/{model}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        download=1,
    params:
        spec=plan.spec_of("resolve"),
        files=plan.files_flag,
    shell:
        "python -m headmaps.steps.resolve --spec {params.spec:q} {params.files} --source {output.source:q} > {log:q} 2>&1"


rule fetch_layer:
    input:
        source="results/{model}/checkpoint/source.json",
    output:
        tensors="results/{model}/checkpoint/layer-{layer}.safetensors",
        record="results/{model}/checkpoint/layer-{layer}.json",
    log:
        "logs/fetch_layer/{model}/layer-{layer}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        download=plan.download_slots,
    params:
        spec=plan.spec_of("fetch_layer"),
    shell:
        "python -m headmaps.steps.fetch_layer --spec {params.spec:q} --source {input.source:q} --layer {wildcards.layer}"
        " --output {output.tensors:q} --record {output.record:q} > {log:q} 2>&1"
