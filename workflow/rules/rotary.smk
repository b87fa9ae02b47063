# The QK matrix at a distance: with the model's own rotary between the current and the attended token.


rule turn_qk:
    input:
        record="results/{model}/heads/layer-{layer}.json",
        W_Q=ancient("results/{model}/heads/layer-{layer}/W_Q.npy"),
        W_K=ancient("results/{model}/heads/layer-{layer}/W_K.npy"),
        W_V=ancient("results/{model}/heads/layer-{layer}/W_V.npy"),
        W_O=ancient("results/{model}/heads/layer-{layer}/W_O.npy"),
        extras=ancient("results/{model}/heads/layer-{layer}/extras.npz"),
        geometry="results/{model}/heads/geometry.json",
        code=plan.code("rotary"),
    output:
        arrays="results/{model}/{layer_norm}/rotary/{matrix}/layer-{layer}.npz",
        record="results/{model}/{layer_norm}/rotary/{matrix}/layer-{layer}.json",
    log:
        "logs/turn_qk/{model}/{layer_norm}/{matrix}/layer-{layer}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        **needs.of("rotary"),
    params:
        spec=plan.spec_of("rotary"),
        directory=subpath(input.W_Q, parent=True),
    shell:
        "python -m headmaps.steps.rotary --spec {params.spec:q} --geometry {input.geometry:q}"
        " --heads {params.directory:q} --layer {wildcards.layer}"
        " --output {output.arrays:q} --record {output.record:q} > {log:q} 2>&1"


rule draw_rotary:
    input:
        geometry="results/{model}/heads/geometry.json",
        source="results/{model}/checkpoint/source.json",
        records=plan.input_layers("{layer_norm}/rotary/{matrix}", ".json"),
        arrays=ancient(plan.input_layers("{layer_norm}/rotary/{matrix}", ".npz")),
        code=plan.code("rotary_table"),
    output:
        table="results/{model}/{layer_norm}/tables/rotary-{matrix}.csv",
        figures=report(
            expand(
                "results/{{model}}/{{layer_norm}}/figures/rotary-{{matrix}}.{format}",
                format=plan.config.figures.formats,
            ),
            caption="../report/figure.rst",
            category="Positions",
            subcategory="{model}",
            labels={"figure": "distance", "matrix": "{matrix}"},
        ),
        record="results/{model}/{layer_norm}/figures/rotary-{matrix}.json",
    log:
        "logs/draw_rotary/{model}/{layer_norm}/{matrix}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("rotary_table"),
    shell:
        "python -m headmaps.steps.rotary_table --spec {params.spec:q} --geometry {input.geometry:q}"
        " --source {input.source:q} --decompositions {input.arrays:q} --records {input.records:q}"
        " --table {output.table:q} --figures {output.figures:q} --record {output.record:q} > {log:q} 2>&1"
