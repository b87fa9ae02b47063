# The figures. A drawing is one call of the figure step for models of one shape; its files are known beforehand, so
# each drawing is a rule of its own.
for drawing in drawings(plan):

    rule:
        name:
            drawing.rule
        input:
            records=drawing.records,
            decompositions=ancient(drawing.decompositions),
            table=drawing.table,
            states=drawing.states.files,
            head_records=drawing.states.records,
            heads=ancient(drawing.states.arrays),
            geometry="results/{model}/heads/geometry.json",
            source="results/{model}/checkpoint/source.json",
            code=drawing.code,
        output:
            figures=report(
                drawing.outputs,
                caption="../report/figure.rst",
                category=drawing.category,
                subcategory="{model}",
                labels={
                    "figure": drawing.job.figure,
                    "part": drawing.job.key,
                    "layer norm": "{layer_norm}",
                },
            ),
            record=drawing.record,
        log:
            drawing.log,
        wildcard_constraints:
            model=drawing.model_pattern,
        conda:
            "../../envs/environment.yaml"
        threads: 1
        params:
            spec=drawing.spec,
            heads=drawing.states.folders,
        shell:
            "python -m headmaps.steps.figure --spec {params.spec:q} --geometry {input.geometry:q}"
            " --source {input.source:q} --heads-csv {input.table:q} --decompositions {input.decompositions:q}"
            " --states {input.states:q} --heads {params.heads:q}"
            " --records {input.records:q} --outputs {output.figures:q} --record {output.record:q} > {log:q} 2>&1"
