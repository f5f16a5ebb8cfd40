"""Configurations of other libraries that no list names: every class that they offer, with settings drawn at random.

A registry says what there is, a class says what it takes: sizes are made small, switches and activations are drawn
from a generator that the name seeds, and the inputs follow from the signature of ``forward``. Nothing is tuned by hand
for one network, so some do not run; those are counted as such and prove nothing.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from networks import graph_models, timm_models, transformers_models
from networks.case import Case, images, tokens
from networks.graph_models import FEATURES, Stack, edges, features, mlp
from networks.transformers_models import VOCABULARY, normal
from networks.transformers_small import small
from torch import nn

__all__ = ["Draw", "timm", "torch_geometric", "transformers"]

Draw = tuple[str, str, str, Callable[[], Case]]  # library, family, name, and what makes the case
HEADS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION",
         "AUDIO_CLASSIFICATION", "CTC", "SEMANTIC_SEGMENTATION", "TIME_SERIES_PREDICTION", "OBJECT_DETECTION",
         "VIDEO_CLASSIFICATION", "DEPTH_ESTIMATION", "TOKEN_CLASSIFICATION", "TEXT_TO_WAVEFORM")  # fmt: skip
ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new", "relu2", "tanh", "gelu_pytorch_tanh")
SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qk_norm", "qk_norm",
            "use_cls_token", "add_cross_attention", "parallel_attn", "alibi", "use_parallel_residual", "conv_bias",
            "bias", "layer_norm_before", "do_stable_layer_norm", "norm_before_gate", "rms_norm")  # fmt: skip


def transformers() -> Iterator[Draw]:
    """Every kind of transformers' registries whose configuration is not known, with at most two of its heads."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    known = {case.family for case in transformers_models.CASES}
    for kind, config in sorted(CONFIG_MAPPING_NAMES.items()):
        if config.removesuffix("Config") in known:
            continue
        names = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").get(kind) for head in HEADS]
        found = list(dict.fromkeys([n for n in names if isinstance(n, str)]))
        base = modeling_auto.MODEL_MAPPING_NAMES.get(kind)
        found = (
            found[:1] + ([base] if isinstance(base, str) else []) if len(found) != 1 else found + [base] * bool(base)
        )
        for name in found[:2]:
            if isinstance(name, str):
                yield "transformers", config.removesuffix("Config"), name, _transformer(name, config)


def _transformer(name: str, config: str) -> Callable[[], Case]:
    def case() -> Case:
        import transformers as library

        library.logging.set_verbosity_error()
        rng, cls = random.Random(name), getattr(library, config)
        default, drawn = cls(), {}
        for key, value in vars(default).items():
            if key in ("hidden_act", "hidden_activation", "activation_function") and isinstance(value, str):
                drawn[key] = rng.choice((value, *ACTIVATIONS))
            elif key in SWITCHES and isinstance(value, bool):
                drawn[key] = rng.random() < 0.5
            elif key == "experts_implementation":
                drawn[key] = "eager"
        made = small(cls, **drawn)
        model = getattr(library, name)
        asked = inspect.signature(model.forward).parameters
        inputs = _transformer_inputs(asked, made, rng.choice((6, 8, 11)))

        def make() -> nn.Module:
            made._experts_implementation = "eager"
            return model(made)

        return Case(name, "transformers", config.removesuffix("Config"), make, inputs)

    return case


def _transformer_inputs(asked: Any, config: Any, length: int) -> Callable[[int, float, int], dict[str, Any]]:
    """What a model of transformers is called with, by the names of its arguments."""

    def first(*names: str, default: Any = None) -> Any:
        for part in (config, *(getattr(config, n, None) for n in ("vision_config", "text_config", "audio_config"))):
            for name in names:
                value = getattr(part, name, None)
                if isinstance(value, int) or (isinstance(value, list | tuple) and value and isinstance(value[0], int)):
                    return value if isinstance(value, int) else value[0]
        return default

    def inputs(seed: int, scale: float, batch: int) -> dict[str, Any]:
        given: dict[str, Any] = {}
        size, channels = first("image_size", default=32), first("num_channels", "in_channels", default=3)
        if "input_ids" in asked:
            given["input_ids"] = tokens(first("vocab_size", default=VOCABULARY), length, seed, batch)
        if "decoder_input_ids" in asked and getattr(config, "is_encoder_decoder", False):
            given["decoder_input_ids"] = tokens(first("vocab_size", default=VOCABULARY), 5, seed + 9, batch)
        if "pixel_values" in asked:
            given["pixel_values"] = normal(seed, scale, batch, channels, size, size)
        if "pixel_values_videos" in asked and "pixel_values" not in asked:
            given["pixel_values_videos"] = normal(seed, scale, batch, 4, channels, size, size)
        if "input_values" in asked:
            given["input_values"] = normal(seed, scale, batch, 400)
        if "input_features" in asked:
            bins = first("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", default=16)
            given["input_features"] = normal(seed, scale, batch, 24, bins)
        if "past_values" in asked:
            length_ = first("context_length", "seq_length", default=32)
            given["past_values"] = normal(seed, scale, batch, length_, first("num_input_channels", default=1))
        return given

    return inputs


def timm() -> Iterator[Draw]:
    """Models of timm by name, three of each file that are not known, the smallest that their builders can make."""
    import timm as library

    known = {case.name for case in timm_models.CASES}
    files: dict[str, list[str]] = {}
    for name in library.list_models():
        if name not in known:
            files.setdefault(library.model_entrypoint(name).__module__.rsplit(".", 1)[-1], []).append(name)
    for file, names in sorted(files.items()):
        for name in random.Random(file).sample(names, min(2, len(names))):
            yield "timm", file, name, _timm(name)


def _timm(name: str) -> Callable[[], Case]:
    def case() -> Case:
        import timm as library

        rng = random.Random(name)
        act = rng.choice((nn.ReLU, nn.SiLU, nn.GELU, nn.Tanh))
        tries: list[dict[str, Any]] = [
            {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4, "act_layer": act},
            {"depth": 2, "embed_dim": 48, "num_heads": 4, "img_size": 64},
            {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": 32},
            {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48)},
            {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64)},
            {"layers": (1, 1, 1, 1), "act_layer": act}, {"layers": (1, 1, 1, 1)},
            {"img_size": 64}, {"act_layer": act}, {},
        ]  # fmt: skip
        for settings in tries:
            try:
                with torch.device("meta"):
                    made = library.create_model(name, num_classes=7, **settings)
            except Exception:  # what a builder does not take is no finding
                continue
            if sum(p.numel() for p in made.parameters()) < 6_000_000:
                break
        else:
            raise ValueError("no small configuration")
        channels, size = made.default_cfg.get("input_size", (3, 64, 64))[:2]
        size = 64 if "img_size" in settings or not made.default_cfg.get("fixed_input_size") else size

        def make() -> nn.Module:
            return library.create_model(name, num_classes=7, **settings)

        return Case(name, "timm", name.split("_")[0], make, images(size, channels))

    return case


def torch_geometric() -> Iterator[Draw]:
    """Every convolution of PyTorch Geometric that takes two sizes, twice in a stack, with switches drawn."""
    import torch_geometric.nn as library

    known = {case.family for case in graph_models.CASES}
    for name in library.conv.__all__:
        if name not in known:
            for draw in range(2):
                yield "torch_geometric", name, f"{name} {draw}", _convolution(name, draw)


def _convolution(name: str, draw: int) -> Callable[[], Case]:
    def case() -> Case:
        import torch_geometric.nn as library

        rng, cls = random.Random(f"{name} {draw}"), getattr(library, name)
        asked = inspect.signature(cls.__init__).parameters
        chosen: dict[str, Any] = {}
        for key, parameter in asked.items():
            if key in ("K", "num_layers", "num_stacks", "kernel_size", "num_bases", "num_timesteps", "heads", "dim"):
                chosen[key] = rng.choice((2, 3))
            elif isinstance(parameter.default, bool) and key not in ("flow", "cached", "explain"):
                chosen[key] = rng.random() < 0.5
            elif key == "aggr":
                chosen[key] = rng.choice(("add", "mean", "max"))
        given = chosen if draw else {k: v for k, v in chosen.items() if asked[k].default is inspect.Parameter.empty}

        def make() -> nn.Module:
            torch.manual_seed(0)
            sizes = {"in_channels": FEATURES, "out_channels": 12} if "in_channels" in asked else {}
            sizes |= {"nn": mlp(2 * FEATURES if name == "EdgeConv" else FEATURES, 8)} if "nn" in asked else {}
            sizes |= {"channels": FEATURES} if "channels" in asked else {}
            first = cls(**{k: v for k, v in {**sizes, **given}.items() if k in asked})
            with torch.no_grad():
                width = first(features(1, 1.0).float(), edges(1)).shape[-1]
            return Stack(first, library.GCNConv(width, 4), pooled=bool(draw))

        return Case(f"{name} {draw}", "torch_geometric", name, make, lambda s, c, b: (features(s, c), edges(s)), ())

    return case
