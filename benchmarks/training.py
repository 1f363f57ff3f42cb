"""Training measured: the loop of `regard train` against a plain loop around the same model in `transformers` (Marian).

    python benchmarks/training.py                                     the model that the device is meant for
    python benchmarks/training.py --shape base --device cuda --data FOLDER

All learn the same pairs, in batches of as many tokens: ours as `regard train` makes them, the others' of pairs of like
lengths. Speed is counted in target tokens that are there, never in padding. They take turns in one process, a window of
steps each, and the medians of the windows are compared. What comes before the first window (on a GPU: recording a graph
for each shape) is told on its own.

Ours is put together as `regard train` does it, from files to the step, with batches made meanwhile; the mean of the
weights is left out, which the other has not, and has a line of its own, as have two passes that must agree (R-Drop).
The other has AdamW (fused), clipping, label smoothing and dropout as ours, and its batches are all made before. Where
eole is installed, its model is measured in the same plain loop.
"""

import argparse
import copy
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from timing import hardware, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard import toml
from regard.data import phrasebook
from regard.data.batches.batch import Batch
from regard.data.batches.feed import PlanFeed, prefetch_steps
from regard.models.build import build
from regard.tokens import IGNORED_LABEL
from regard.training import resolution
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine, pin_batch
from regard.training.tasks import sentence_pairs
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.translation import TranslationSetup, TranslationTask

OURS, AVERAGED, AGREEING, THEIRS = "regard", "regard, mean of weights", "regard, R-Drop", "transformers"
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(source ids, their lengths, target ids) -> logits"""
Loss = Callable[[Logits, Sequence[Tensor], float], Tensor]
"""(logits, (source ids, their lengths, target ids, labels), label smoothing) -> the loss of a batch"""
POSITIONS = 512
PAIRS = 20_000
"""Of the phrasebook, where no data is given."""


@dataclass(frozen=True)
class Shape:
    """A Transformer, and the batches it is trained with."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    dropout: float
    inside: float
    """Dropout of attention weights and inside the feed-forward layers."""
    tokens: int
    """Of a batch, source and target together, padding counted."""


SHAPES = {
    "base": Shape(6, 512, 2048, 8, 16_000, dropout=0.1, inside=0.0, tokens=24_000),
    "small": Shape(4, 256, 1024, 4, 8000, dropout=0.3, inside=0.1, tokens=12_000),
    "cpu": Shape(4, 128, 256, 4, 8000, dropout=0.3, inside=0.0, tokens=4_450),
}


@dataclass(frozen=True)
class Prepared:
    """The data and all settings, ready to be learned from."""

    work: TranslationTask
    shape: Shape
    model: Any
    settings: TrainingConfig
    device: torch.device

    @property
    def feed(self) -> PlanFeed:
        """The batches as our loop gets them."""
        return self.work.feed(0, 1)


def prepared(shape: Shape, device: torch.device, data: Sequence[str], place: Path) -> Prepared:
    """Everything up to the first step, as `regard train` does it."""
    sides = ("encoder", "decoder")
    changes: dict[str, Any] = {
        "tokenizer.vocab_size": shape.vocabulary, "model.source_vocab_size": shape.vocabulary,
        "model.target_vocab_size": shape.vocabulary, "model.width": shape.width,
        "model.decoder.cross.heads": shape.heads, "model.decoder.cross.dropout": shape.inside,
        "model.embedding.dropout": shape.dropout,
        "training.batches.max_tokens": shape.tokens, "training.ema_decay": 0.0, "training.rdrop": 0.0,
    }
    for side in sides:
        changes |= {f"model.{side}.layers": shape.layers, f"model.{side}.mixer.heads": shape.heads,
                    f"model.{side}.mixer.dropout": shape.inside, f"model.{side}.feed_forward.ffn_width": shape.inner,
                    f"model.{side}.feed_forward.dropout": shape.inside, f"model.{side}.dropout": shape.dropout}
    request = TrainingRequest(task="seq2seq", data=tuple(data), output=place)
    asked = toml.override(toml.document_of({"recipe": "transformer"}, "benchmark"), changes)
    properties = resolution.device_properties(device)
    ready = resolution.prepare(request, TranslationSetup(), asked, properties, lambda event: None)
    assert isinstance(ready.task, TranslationTask)
    return Prepared(ready.task, shape, ready.model, ready.settings, device)


def ours(given: Prepared, steps: range, **changes: float) -> Iterator[None]:
    """Our loop without what it does between steps. Each turn of the iterator is a step."""
    settings = replace(given.settings, **changes)
    torch.manual_seed(settings.seed)
    model = build(given.model).to(given.device).train()
    work = copy.copy(given.work)
    work.settings = settings
    engine = TrainingEngine(work.objective(model), settings, DistributedContext.alone())
    feed, ready = given.feed, pin_batch if given.device.type == "cuda" else _same
    for step, batch in zip(steps, prefetch_steps(lambda step: ready(feed.at(step)), steps), strict=True):
        engine.step(step + 1, [batch], settings.schedule.rate(step + 1))
        yield
    assert engine.read().bad is None


def once(logits: Logits, batch: Sequence[Tensor], smoothing: float) -> Tensor:
    """The loss of one pass."""
    *given, labels = batch
    return cross_entropy(logits(*given).flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL,
                         label_smoothing=smoothing)


def plain(given: Prepared, steps: range, make: Callable[[Shape], tuple[nn.Module, Logits]],
          criterion: Loss = once) -> Iterator[None]:
    """A plain loop around a model of another library. Each turn of the iterator is a step."""
    device, settings = given.device, given.settings
    torch.manual_seed(settings.seed)
    model, logits = make(given.shape)
    model.to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    ready = pin_batch if device.type == "cuda" else _same
    batches = [ready(batch) for batch in rows(given, steps)]
    for step, batch in zip(steps, batches, strict=True):
        for group in optimiser.param_groups:
            group["lr"] = settings.schedule.rate(step + 1)
        tensors = [tensor.to(device, non_blocking=True) for tensor in (
            batch.source.ids, batch.source.lengths, batch.inputs.ids, batch.labels)]
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            loss = criterion(logits, tensors, settings.label_smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        yield
    assert loss.isfinite()


def marian(shape: Shape) -> tuple[nn.Module, Logits]:
    """The same model in transformers."""
    from transformers import MarianConfig, MarianMTModel

    sides = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in
             (("layers", shape.layers), ("attention_heads", shape.heads), ("ffn_dim", shape.inner))}
    model = MarianMTModel(MarianConfig(
        vocab_size=shape.vocabulary, d_model=shape.width, activation_function="relu", dropout=shape.dropout,
        attention_dropout=shape.inside, activation_dropout=shape.inside, scale_embedding=True,
        max_position_embeddings=POSITIONS, pad_token_id=0, eos_token_id=1, bos_token_id=None, decoder_start_token_id=0,
        forced_eos_token_id=None, **sides))

    def logits(source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        mask = (torch.arange(source.shape[1], device=source.device) < lengths.unsqueeze(-1)).long()
        return model(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits

    return model, logits


def eole(shape: Shape) -> tuple[nn.Module, Logits]:
    """The same shape in eole, whose norms come first. It takes no padding but by its id, which is 0 here."""
    from eole.config.models import TransformerModelConfig
    from eole.models.model import EncoderDecoderModel

    class Vocabulary:
        def __len__(self) -> int:
            return shape.vocabulary

        def __getitem__(self, token: str) -> int:
            return 0

    config = TransformerModelConfig(
        layers=shape.layers, hidden_size=shape.width, heads=shape.heads, transformer_ff=shape.inner,
        share_embeddings=True, share_decoder_embeddings=True, mlp_activation_fn="relu", add_qkvbias=True,
        add_ffnbias=True, add_final_linear_bias=True,
        embeddings={"position_encoding_type": "SinusoidalInterleaved", "word_vec_size": shape.width})
    running = SimpleNamespace(
        dropout=[shape.dropout], attention_dropout=[shape.inside], self_attn_backend="pytorch", parallel_gpu=1,
        use_ckpting=[], optim="adamw", context_length=0, dynamic_shapes=False, prefill_cache_size=0,
        prefill_chunk_size=0, timeout=0)
    vocabularies = {"src": Vocabulary(), "tgt": Vocabulary(), "specials": {"pad_token": "<pad>"}}
    model = EncoderDecoderModel.build_blocks(config, vocabularies, running_config=running)
    model.build_generator(config, running, vocabularies)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
            module.reset_parameters()
    nn.init.normal_(model.tgt_emb.embeddings.weight, std=shape.width**-0.5)

    def logits(source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        closed = torch.cat([target, target[:, :1]], dim=1)  # it leaves out the last one
        return model.generator(model(source, closed, lengths)[0])

    return model, logits


def rows(given: Prepared, steps: range) -> Iterator[Batch]:
    """Batches of rows of like lengths, filled up to the longest of each."""
    config = replace(given.settings.batches, layout="padded", shapes="as_drawn")
    feed = sentence_pairs.translation_feed(given.work.prepared, config, given.settings.seed)
    return (feed.at(step) for step in steps)


def contestants(given: Prepared, steps: range) -> dict[str, Iterator[None]]:
    """All that are measured; nothing of them is made before their first step."""
    others = {THEIRS: marian, "eole": eole}
    found = {OURS: ours(given, steps)} | {name: plain(given, steps, make) for name, make in others.items()
                                          if importlib.util.find_spec(name) is not None}
    return found | {AVERAGED: ours(given, steps, ema_decay=0.998),
                    AGREEING: ours(given, steps, rdrop=5.0)}


def seconds(steps: Iterator[None], many: int, device: torch.device) -> float:
    """How long the next steps take."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in itertools.islice(steps, many):
        pass
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measured(given: Prepared, works: dict[str, Iterator[None]], warm: int, many: int,
             windows: int) -> list[dict[str, Any]]:
    """What each contestant needed: `warm` steps, then `windows` of `many` steps each, in turns."""
    steps, device = range(warm + many * windows), given.device
    feed = given.feed
    own = [feed.at(step).tokens for step in steps]
    others = [batch.tokens for batch in rows(given, steps)]
    found = dict[str, dict[str, Any]]()
    for name, work in works.items():
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found[name] = {"name": name, "before_s": seconds(work, warm, device), "rates": [], "seconds": []}
        if device.type == "cuda":
            found[name]["memory"] = torch.cuda.max_memory_allocated() - before
    for window in range(windows):
        for name, work in works.items():
            tokens = own if name.startswith(OURS) else others
            real = sum(tokens[warm + window * many:warm + (window + 1) * many])
            found[name]["seconds"].append(seconds(work, many, device))
            found[name]["rates"].append(real / found[name]["seconds"][-1])
    for work in works.values():
        next(work, None)  # where each looks whether all was finite
    return list(found.values())


def alone(given: Prepared, name: str, warm: int) -> int:
    """The most memory of this process, in bytes, while one contestant alone is trained."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far was that of preparing the data
    seconds(contestants(given, range(warm))[name], warm, given.device)
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def printed(given: Prepared, found: list[dict[str, Any]], tokens: float) -> str:
    """The results as a table."""
    base = next((statistics.median(each["rates"]) for each in found if each["name"] == THEIRS), None)
    lines = []
    for each in found:
        rate = statistics.median(each["rates"])
        lines.append([each["name"], f"{rate:,.0f}", f"{min(each['rates']):,.0f} to {max(each['rates']):,.0f}",
                      "" if base is None else f"{rate / base:.2f}", f"{each['before_s']:.1f}",
                      f"{each['memory'] / 2**20:,.0f}"])
    shape = given.shape
    return (f"{shape.layers} + {shape.layers} layers, width {shape.width}, feed-forward {shape.inner}, {shape.heads} "
            f"heads, vocabulary {shape.vocabulary:,}, {given.model.parameters():,} parameters, dropout {shape.dropout} "
            f"({shape.inside} inside), {given.settings.precision}; {tokens:,.0f} target tokens a step\n\n"
            + table(["loop", "target tokens/s", "of all windows", "speed against transformers", "s before the first "
                     "window", "MB at most"], lines))


def files(folder: str | None, languages: str, place: Path) -> list[str]:
    """The files of the data; of the phrasebook where no folder is given."""
    if folder is not None:
        return [str(Path(folder, f"train.{language}.gz")) for language in languages.split("-")]
    path = place / "phrasebook.tsv"
    if not path.exists():
        path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in phrasebook.pairs(PAIRS)))
    return [str(path)]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", choices=SHAPES, help="small on a GPU, cpu on a CPU where it is not given")
    parser.add_argument("--data", metavar="FOLDER", help="with train.LANGUAGE.gz of two languages")
    parser.add_argument("--languages", default="en-de")
    parser.add_argument("--tokens", type=int, help="of a batch, source and target together, padding counted")
    parser.add_argument("--steps", type=int, help="of a window")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--warm", type=int, help="steps before the first window; on a GPU three epochs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the memory of one contestant, in a process of its own
    parser.add_argument("--place", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure as the command line asks."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(given.place or folder)
        device = DistributedContext.alone().device(given.device)
        if device.type == "cpu":
            torch.set_flush_denormal(True)
        shape = SHAPES[given.shape or ("small" if device.type == "cuda" else "cpu")]
        shape = replace(shape, tokens=given.tokens or shape.tokens)
        everything = prepared(shape, device, files(given.data, given.languages, place), place)
        epoch = everything.feed.steps
        warm = given.warm or (3 * epoch if device.type == "cuda" else 3)
        if given.alone:
            print(alone(everything, given.alone, warm))
            return
        many = given.steps or (epoch if device.type == "cuda" else 8)
        works = contestants(everything, range(warm + many * given.windows))
        found = measured(everything, works, warm, many, given.windows)
        for each in found if device.type == "cpu" else ():
            command = [sys.executable, *sys.argv, "--place", str(place), "--alone", each["name"]]
            each["memory"] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        tokens = statistics.mean(everything.feed.at(step).tokens for step in range(epoch))
    if given.json:
        print(json.dumps({"hardware": hardware(device.type), "arguments": vars(given), "target_tokens_per_step": tokens,
                          "loops": found}, indent=1))
    else:
        print(f"{hardware(device.type)}\n`python benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}`\n\n"
              + printed(everything, found, tokens))


def _same(batch: Batch) -> Batch:
    return batch


if __name__ == "__main__":
    main()
