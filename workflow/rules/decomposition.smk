# The singular value decomposition of every head's value and QK matrix, one job a layer and matrix.


rule decompose:
    input:
        record="results/{model}/heads/layer-{layer}.json",
        W_Q=ancient("results/{model}/heads/layer-{layer}/W_Q.npy"),
        W_K=ancient("results/{model}/heads/layer-{layer}/W_K.npy"),
        W_V=ancient("results/{model}/heads/layer-{layer}/W_V.npy"),
        W_O=ancient("results/{model}/heads/layer-{layer}/W_O.npy"),
        extras=ancient("results/{model}/heads/layer-{layer}/extras.npz"),
        geometry="results/{model}/heads/geometry.json",
        code=plan.code("decompose"),
    output:
        arrays="results/{model}/{layer_norm}/decomposition/{matrix}/layer-{layer}.npz",
        record="results/{model}/{layer_norm}/decomposition/{matrix}/layer-{layer}.json",
    log:
        "logs/decompose/{model}/{layer_norm}/{matrix}/layer-{layer}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        **needs.of("decompose"),
    params:
        spec=plan.spec_of("decompose"),
        directory=subpath(input.W_Q, parent=True),
    shell:
        "python -m headmaps.steps.decompose --spec {params.spec:q} --geometry {input.geometry:q}"
        " --heads {params.directory:q} --layer {wildcards.layer}"
        " --output {output.arrays:q} --record {output.record:q} > {log:q} 2>&1"
