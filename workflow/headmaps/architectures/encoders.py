"""The table, part three: encoders (text and vision) and encoder-decoders.

An encoder-decoder has one entry per stack. Names of fields: headmaps.architectures.entry.
"""

from dataclasses import replace

from headmaps.architectures.entry import ALL_BIASES, Architecture, position_learned
from headmaps.architectures.positions import relative
from headmaps.geometry import Norm

POST_LAYER = Norm("layer", "post", epsilon=1e-12, bias=True)
PRE_LAYER = Norm("layer", "pre", epsilon=1e-5, bias=True)

BERT = Architecture(
    block="encoder.layer.{i}.",
    modules={
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
    },
    biases=ALL_BIASES,
    norm=POST_LAYER,
    position=position_learned,
    causal=lambda m: bool(m.get("is_decoder", default=False)),
)
DISTILBERT = replace(
    BERT,
    block="transformer.layer.{i}.",
    modules={"q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "o": "attention.out_lin"},
    causal=False,
)
VIT = Architecture(
    block="encoder.layer.{i}.",
    modules={
        "q": "attention.attention.query",
        "k": "attention.attention.key",
        "v": "attention.attention.value",
        "o": "attention.output.dense",
    },
    biases=lambda m: ("q", "k", "v", "o") if m.get("qkv_bias", default=True) else ("o",),
    norm=replace(PRE_LAYER, epsilon=1e-12),
    norm_module="layernorm_before",
    position=position_learned,
    causal=False,
)
CLIP_TEXT = Architecture(
    block="encoder.layers.{i}.",
    modules={name[0]: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
    biases=ALL_BIASES,
    norm=PRE_LAYER,
    norm_module="layer_norm1",
    position=position_learned,
    defaults={"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 12},
)
CLIP_VISION = replace(
    CLIP_TEXT, causal=False, defaults={"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
)

# --- Encoder-decoders ---------------------------------------------------------------------------------------------

CROSS_NOTE = (
    "cross-attention: queries read the decoder's stream, keys and values the encoder's output; a value matrix reads "
    "one stream and writes another, so overlaps between its two sides compare unrelated bases",
)


def t5_stack(side: str, sublayer: int, attention: str, layers: tuple[str, ...]) -> Architecture:
    """One attention of T5: (encoder, 0, SelfAttention), (decoder, 0, SelfAttention), (decoder, 1, EncDecAttention)."""
    path = f"layer.{sublayer}.{attention}"
    cross = attention == "EncDecAttention"
    bias = {"relative_bias": f"{side}.block.0.{path}.relative_attention_bias.weight"}
    return Architecture(
        block=f"{side}.block.{{i}}.",
        modules={role: f"{path}.{role}" for role in "qkvo"},
        norm=Norm("rms", "pre", epsilon=1e-6),
        norm_module=f"layer.{sublayer}.layer_norm",
        d_head=("d_kv",),
        n_layers=layers,
        position=position_learned if cross else relative(bidirectional=side == "encoder"),
        shared={} if cross else bias,
        scale=lambda m: 1.0,
        causal=side == "decoder" and not cross,
        notes=CROSS_NOTE if cross else (),
        defaults={"d_kv": 64},
    )


def whisper_stack(side: str, attention: str, norm: str) -> Architecture:
    """One attention of Whisper; keys have no bias."""
    cross = attention == "encoder_attn"
    return Architecture(
        block=f"{side}.layers.{{i}}.",
        modules={name[0]: f"{attention}.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
        biases=("q", "v", "o"),
        norm=PRE_LAYER,
        norm_module=norm,
        n_layers=(f"{side}_layers",),
        n_heads=(f"{side}_attention_heads",),
        position=position_learned,
        causal=side == "decoder" and not cross,
        notes=CROSS_NOTE if cross else (),
    )


ENCODERS = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": DISTILBERT,
    "vit": VIT,
    "clip_text_model": CLIP_TEXT,
    "clip_vision_model": CLIP_VISION,
}
T5_DECODER_LAYERS = ("num_decoder_layers", "num_layers")
ENCODER_DECODERS = {
    "t5": {
        "encoder": t5_stack("encoder", 0, "SelfAttention", ("num_layers",)),
        "decoder": t5_stack("decoder", 0, "SelfAttention", T5_DECODER_LAYERS),
        "cross": t5_stack("decoder", 1, "EncDecAttention", T5_DECODER_LAYERS),
    },
    "whisper": {
        "encoder": whisper_stack("encoder", "self_attn", "self_attn_layer_norm"),
        "decoder": whisper_stack("decoder", "self_attn", "self_attn_layer_norm"),
        "cross": whisper_stack("decoder", "encoder_attn", "encoder_attn_layer_norm"),
    },
}
