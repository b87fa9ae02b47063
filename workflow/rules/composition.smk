# Composition: every earlier head's output with every later head's input.


rule compose_layer:
    input:
        record="results/{model}/heads/layer-{layer}.json",
        W_Q=ancient("results/{model}/heads/layer-{layer}/W_Q.npy"),
        W_K=ancient("results/{model}/heads/layer-{layer}/W_K.npy"),
        W_V=ancient("results/{model}/heads/layer-{layer}/W_V.npy"),
        W_O=ancient("results/{model}/heads/layer-{layer}/W_O.npy"),
        extras=ancient("results/{model}/heads/layer-{layer}/extras.npz"),
        writer_records=plan.earlier_layers(".json"),
        writer_W_Q=ancient(plan.earlier_layers("W_Q.npy")),
        writer_W_K=ancient(plan.earlier_layers("W_K.npy")),
        writer_W_V=ancient(plan.earlier_layers("W_V.npy")),
        writer_W_O=ancient(plan.earlier_layers("W_O.npy")),
        writer_extras=ancient(plan.earlier_layers("extras.npz")),
        geometry="results/{model}/heads/geometry.json",
        code=plan.code("composition"),
    output:
        arrays="results/{model}/{layer_norm}/composition/layer-{layer}.npz",
        record="results/{model}/{layer_norm}/composition/layer-{layer}.json",
    log:
        "logs/compose_layer/{model}/{layer_norm}/layer-{layer}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    resources:
        **needs.of("composition"),
    params:
        spec=plan.spec_of("composition"),
        directory=subpath(input.W_Q, parent=True),
        writers=plan.earlier_layers(""),
    shell:
        "python -m headmaps.steps.composition --spec {params.spec:q} --geometry {input.geometry:q}"
        " --heads {params.directory:q} --writers {params.writers:q} --layer {wildcards.layer}"
        " --output {output.arrays:q} --record {output.record:q} > {log:q} 2>&1"


rule draw_composition:
    input:
        geometry="results/{model}/heads/geometry.json",
        source="results/{model}/checkpoint/source.json",
        records=plan.input_layers("{layer_norm}/composition", ".json"),
        arrays=ancient(plan.input_layers("{layer_norm}/composition", ".npz")),
        code=plan.code("composition_table"),
    output:
        table="results/{model}/{layer_norm}/tables/composition.csv",
        figures=report(
            expand(
                "results/{{model}}/{{layer_norm}}/figures/composition.{format}",
                format=plan.config.figures.formats,
            ),
            caption="../report/figure.rst",
            category="Composition",
            subcategory="{model}",
            labels={"figure": "composition", "layer norm": "{layer_norm}"},
        ),
        record="results/{model}/{layer_norm}/figures/composition.json",
    log:
        "logs/draw_composition/{model}/{layer_norm}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("composition_table"),
    shell:
        "python -m headmaps.steps.composition_table --spec {params.spec:q} --geometry {input.geometry:q}"
        " --source {input.source:q} --compositions {input.arrays:q} --records {input.records:q}"
        " --table {output.table:q} --figures {output.figures:q} --record {output.record:q} > {log:q} 2>&1"
