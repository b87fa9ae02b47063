# Matched random baselines: one pool of Haar frames a model, and literal draws per layer and kind.


rule haar_pool:
    input:
        geometry="results/{model}/heads/geometry.json",
        code=plan.code("haar_pool"),
    output:
        arrays="results/{model}/baselines/haar.npz",
        record="results/{model}/baselines/haar.json",
    log:
        "logs/haar_pool/{model}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        **needs.of("haar_pool"),
    params:
        spec=plan.spec_of("haar_pool"),
    shell:
        "python -m headmaps.steps.haar_pool --spec {params.spec:q} --geometry {input.geometry:q}"
        " --output {output.arrays:q} --record {output.record:q} > {log:q} 2>&1"


rule draw_baseline:
    input:
        record="results/{model}/heads/layer-{layer}.json",
        W_Q=ancient("results/{model}/heads/layer-{layer}/W_Q.npy"),
        W_K=ancient("results/{model}/heads/layer-{layer}/W_K.npy"),
        W_V=ancient("results/{model}/heads/layer-{layer}/W_V.npy"),
        W_O=ancient("results/{model}/heads/layer-{layer}/W_O.npy"),
        extras=ancient("results/{model}/heads/layer-{layer}/extras.npz"),
        geometry="results/{model}/heads/geometry.json",
        code=plan.code("baseline"),
    output:
        arrays="results/{model}/{layer_norm}/baselines/{kind}/layer-{layer}.npz",
        record="results/{model}/{layer_norm}/baselines/{kind}/layer-{layer}.json",
    log:
        "logs/draw_baseline/{model}/{layer_norm}/{kind}/layer-{layer}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        **needs.of("baseline"),
    params:
        spec=plan.spec_of("baseline"),
        directory=subpath(input.W_Q, parent=True),
    shell:
        "python -m headmaps.steps.baseline --spec {params.spec:q} --geometry {input.geometry:q}"
        " --heads {params.directory:q} --layer {wildcards.layer}"
        " --output {output.arrays:q} --record {output.record:q} > {log:q} 2>&1"
