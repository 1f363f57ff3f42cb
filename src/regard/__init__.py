"""Sequence models from the recurrent network to the Transformer: exact, fast parts with one interface.

This file is a table of the public names. A name is imported from its module when it is first used, so
`import regard` is fast and does not import torch.
"""

from typing import TYPE_CHECKING

# The module of each public name.
_HOMES = {
    "attend": "regard.attention.attend",
    "attention_weights": "regard.attention.attend",
    "explain": "regard.attention.attend",
    "Attention": "regard.attention.layer",
    "AgentAwareAttention": "regard.attention.agent_aware",
    "PlainAttention": "regard.attention.layer",
    "BasicAttention": "regard.attention.layer",
    "AxialAttention": "regard.attention.axial",
    "Causal": "regard.attention.mask",
    "Padding": "regard.attention.mask",
    "Window": "regard.attention.mask",
    "Packed": "regard.attention.mask",
    "Placed": "regard.attention.mask",
    "Additive": "regard.attention.score",
    "AgentAware": "regard.attention.score",
    "Bilinear": "regard.attention.score",
    "Score": "regard.attention.score",
    "Normalizer": "regard.attention.normalize",
    "Look": "regard.attention.look",
    "ALiBi": "regard.position.bias",
    "BucketedBias": "regard.position.bias",
    "RelativeBias": "regard.position.bias",
    "Rotary": "regard.position.rotary",
    "SelfAttention": "regard.attention.layer",
    "Recurrence": "regard.recurrence.scan",
    "LSTMN": "regard.recurrence.lstmn",
    "Convolution": "regard.convolution",
    "RWKV4": "regard.rwkv.time_mix",
    "RWKV7": "regard.rwkv.time_mix",
    "ChannelMix": "regard.rwkv.channel_mix",
    "Block": "regard.blocks.block",
    "Stack": "regard.blocks.stack",
    "Tokens": "regard.tokens",
    "PackedTokens": "regard.tokens",
    "build": "regard.models.build",
    "train": "regard.training.api",
    "CallbackEvent": "regard.training.callbacks",
    "StopTraining": "regard.training.callbacks",
    "TrainingError": "regard.training.loop",
    "read_rwkv7": "regard.storage.rwkv7",
    "load": "regard.tasks.load",
    "task": "regard.tasks.load",
    "greedy": "regard.decoding.sampling",
    "beam": "regard.decoding.beam",
    "sample": "regard.decoding.sampling",
    "mbr": "regard.decoding.mbr",
    "with_cross": "regard.decoding.forced",
    "Hypothesis": "regard.decoding.request",
    "ConfigError": "regard.toml",
    "heat_map": "regard.inspection.heat_map",
    "watch": "regard.inspection.watch",
    "Trace": "regard.inspection.trace",
    "Translation": "regard.tasks.translator",
    "Completion": "regard.tasks.completer",
    "Beam": "regard.tasks.search",
    "Sampling": "regard.tasks.search",
    "Glossary": "regard.tasks.glossary",
    "Alignment": "regard.tasks.alignment",
    "Influence": "regard.tasks.influence",
    "Translator": "regard.tasks.translator",
    "Completer": "regard.tasks.completer",
    "Filler": "regard.tasks.filler",
    "Classifier": "regard.tasks.classifier",
    "Embedder": "regard.tasks.classifier",
    "Labeller": "regard.tasks.labeller",
    "Forecaster": "regard.tasks.forecaster",
    "Forecast": "regard.tasks.forecaster",
    "EncoderDecoder": "regard.models.encoder_decoder",
    "LanguageModel": "regard.models.language",
    "MaskedModel": "regard.models.language",
    "Tagger": "regard.models.classification",
    "SequenceClassifier": "regard.models.classification",
    "ImageClassifier": "regard.models.vision",
    "EvoformerBlock": "regard.models.protein",
    "Seq2Seq": "regard.models.seq2seq",
    "RecurrentEncoder": "regard.models.seq2seq",
    "OneContextDecoder": "regard.models.seq2seq",
    "AttendingDecoder": "regard.models.seq2seq",
    "__version__": "regard._version",
}

__all__ = list(_HOMES)

if TYPE_CHECKING:  # the same table for type checkers and editors; a test keeps the two equal
    from regard._version import __version__ as __version__
    from regard.attention.agent_aware import AgentAwareAttention as AgentAwareAttention
    from regard.attention.attend import attend as attend
    from regard.attention.attend import attention_weights as attention_weights
    from regard.attention.attend import explain as explain
    from regard.attention.axial import AxialAttention as AxialAttention
    from regard.attention.layer import Attention as Attention
    from regard.attention.layer import BasicAttention as BasicAttention
    from regard.attention.layer import PlainAttention as PlainAttention
    from regard.attention.layer import SelfAttention as SelfAttention
    from regard.attention.look import Look as Look
    from regard.attention.mask import Causal as Causal
    from regard.attention.mask import Packed as Packed
    from regard.attention.mask import Padding as Padding
    from regard.attention.mask import Placed as Placed
    from regard.attention.mask import Window as Window
    from regard.attention.normalize import Normalizer as Normalizer
    from regard.attention.score import Additive as Additive
    from regard.attention.score import AgentAware as AgentAware
    from regard.attention.score import Bilinear as Bilinear
    from regard.attention.score import Score as Score
    from regard.blocks.block import Block as Block
    from regard.blocks.stack import Stack as Stack
    from regard.convolution import Convolution as Convolution
    from regard.decoding.beam import beam as beam
    from regard.decoding.forced import with_cross as with_cross
    from regard.decoding.mbr import mbr as mbr
    from regard.decoding.request import Hypothesis as Hypothesis
    from regard.decoding.sampling import greedy as greedy
    from regard.decoding.sampling import sample as sample
    from regard.inspection.heat_map import heat_map as heat_map
    from regard.inspection.trace import Trace as Trace
    from regard.inspection.watch import watch as watch
    from regard.models.build import build as build
    from regard.models.classification import SequenceClassifier as SequenceClassifier
    from regard.models.classification import Tagger as Tagger
    from regard.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from regard.models.language import LanguageModel as LanguageModel
    from regard.models.language import MaskedModel as MaskedModel
    from regard.models.protein import EvoformerBlock as EvoformerBlock
    from regard.models.seq2seq import AttendingDecoder as AttendingDecoder
    from regard.models.seq2seq import OneContextDecoder as OneContextDecoder
    from regard.models.seq2seq import RecurrentEncoder as RecurrentEncoder
    from regard.models.seq2seq import Seq2Seq as Seq2Seq
    from regard.models.vision import ImageClassifier as ImageClassifier
    from regard.position.bias import ALiBi as ALiBi
    from regard.position.bias import BucketedBias as BucketedBias
    from regard.position.bias import RelativeBias as RelativeBias
    from regard.position.rotary import Rotary as Rotary
    from regard.recurrence.lstmn import LSTMN as LSTMN
    from regard.recurrence.scan import Recurrence as Recurrence
    from regard.rwkv.channel_mix import ChannelMix as ChannelMix
    from regard.rwkv.time_mix import RWKV4 as RWKV4
    from regard.rwkv.time_mix import RWKV7 as RWKV7
    from regard.storage.rwkv7 import read_rwkv7 as read_rwkv7
    from regard.tasks.alignment import Alignment as Alignment
    from regard.tasks.classifier import Classifier as Classifier
    from regard.tasks.classifier import Embedder as Embedder
    from regard.tasks.completer import Completer as Completer
    from regard.tasks.completer import Completion as Completion
    from regard.tasks.filler import Filler as Filler
    from regard.tasks.forecaster import Forecast as Forecast
    from regard.tasks.forecaster import Forecaster as Forecaster
    from regard.tasks.glossary import Glossary as Glossary
    from regard.tasks.influence import Influence as Influence
    from regard.tasks.labeller import Labeller as Labeller
    from regard.tasks.load import load as load
    from regard.tasks.load import task as task
    from regard.tasks.search import Beam as Beam
    from regard.tasks.search import Sampling as Sampling
    from regard.tasks.translator import Translation as Translation
    from regard.tasks.translator import Translator as Translator
    from regard.tokens import PackedTokens as PackedTokens
    from regard.tokens import Tokens as Tokens
    from regard.toml import ConfigError as ConfigError
    from regard.training.api import train as train
    from regard.training.callbacks import CallbackEvent as CallbackEvent
    from regard.training.callbacks import StopTraining as StopTraining
    from regard.training.loop import TrainingError as TrainingError
else:  # hidden from type checkers, which accept every name once they see a module __getattr__

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used, and keep it."""
        import importlib

        if name not in _HOMES:
            from regard.checks import nearest

            raise AttributeError(f'regard has no name "{name}". {nearest(name, _HOMES)}'.rstrip(), name=name)
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names, imported or not."""
        return sorted({*globals(), *_HOMES})
