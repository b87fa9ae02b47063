# From the normal form to W_Q, W_K, W_V, W_O of every head.


rule geometry:
    input:
        source="results/{model}/checkpoint/source.json",
        code=plan.code("geometry"),
    output:
        geometry="results/{model}/heads/geometry.json",
    log:
        "logs/geometry/{model}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("geometry"),
    shell:
        "python -m headmaps.steps.geometry --spec {params.spec:q} --source {input.source:q}"
        " --output {output.geometry:q} > {log:q} 2>&1"


rule extract_heads:
    input:
        record="results/{model}/checkpoint/layer-{layer}.json",
        tensors=ancient("results/{model}/checkpoint/layer-{layer}.safetensors"),
        geometry="results/{model}/heads/geometry.json",
        source=ancient("results/{model}/checkpoint/source.json"),
        code=plan.code("heads"),
    output:
        W_Q="results/{model}/heads/layer-{layer}/W_Q.npy",
        W_K="results/{model}/heads/layer-{layer}/W_K.npy",
        W_V="results/{model}/heads/layer-{layer}/W_V.npy",
        W_O="results/{model}/heads/layer-{layer}/W_O.npy",
        extras="results/{model}/heads/layer-{layer}/extras.npz",
        record="results/{model}/heads/layer-{layer}.json",
    log:
        "logs/extract_heads/{model}/layer-{layer}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        **needs.of("heads"),
    params:
        spec=plan.spec_of("heads"),
        directory=subpath(output.W_Q, parent=True),
    shell:
        "python -m headmaps.steps.heads --spec {params.spec:q} --geometry {input.geometry:q} --source {input.source:q}"
        " --checkpoint {input.tensors:q} --layer {wildcards.layer} --directory {params.directory:q}"
        " --record {output.record:q} > {log:q} 2>&1"
