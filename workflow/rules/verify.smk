# `snakemake verify`: every hash recomputed, every difference with its cause; makes nothing. Also: `headmaps verify`.


localrules:
    verify,


rule verify:
    log:
        "logs/verify.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.config.model_dump_json(),
    shell:
        "python -m headmaps.steps.verify --spec {params.spec:q} 2>&1 | tee {log:q}"
