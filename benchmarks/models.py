"""Models measured: the Transformer-base of the paper against the same model in `transformers` (Marian).

    python benchmarks/models.py                every part
    python benchmarks/models.py training       one part: training or decoding

Training is one forward and backward pass over a batch of sentence pairs, with dropout 0.1. The lengths are drawn as
sentences of running text have them (log-normal, 25 tokens in the mean, at most 100), the same for all; speed is counted
in tokens that are there, never in padding. Batches come as they are drawn, or cut from a list sorted by length. On a
GPU the passes run under bfloat16 autocast.

Decoding is greedy and step by step, with caches, a fixed number of tokens for every sentence.
"""

import importlib.util
from collections.abc import Callable

import torch
from timing import Work, main, medians, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import regard
from regard.decoding.sampling import greedy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, IGNORED = 32_000, -100
PAIRS = 128 if DEVICE == "cuda" else 16
WRITTEN = 64 if DEVICE == "cuda" else 24
AUTOCAST = torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda")
Pairs = list[tuple[Tensor, Tensor]]


def ours() -> nn.Module:
    """The recipe "transformer"."""
    return regard.build("transformer", source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY).to(DEVICE)


def theirs() -> nn.Module | None:
    """The same shape in transformers; None where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(MarianConfig(
        vocab_size=VOCABULARY, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="relu", dropout=0.1,
        attention_dropout=0.0, activation_dropout=0.0, scale_embedding=True, max_position_embeddings=512,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, decoder_start_token_id=0, forced_eos_token_id=None,
    )).to(DEVICE)


def drawn(count: int, *, ordered: bool) -> Pairs:
    """Sentence pairs of the lengths of running text; the target is about as long as the source."""
    draw = torch.Generator().manual_seed(1)
    many = 16 * count
    lengths = torch.exp(3.05 + 0.6 * torch.randn(many, generator=draw)).clamp(3, 100)
    others = (lengths * torch.exp(0.15 * torch.randn(many, generator=draw))).clamp(3, 100)
    pairs = [tuple(torch.randint(2, VOCABULARY, (int(n),), generator=draw) for n in both)
             for both in zip(lengths, others, strict=True)]
    if ordered:  # one batch of typical length out of the sorted list
        pairs = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))[many // 2:]
    return pairs[:count]


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows filled up with zeros, and their lengths."""
    return (nn.utils.rnn.pad_sequence(rows, batch_first=True).to(DEVICE),
            torch.tensor([len(row) for row in rows], device=DEVICE))


def training_work(model: nn.Module, loss: Callable[[], Tensor]) -> Work:
    """One forward and backward pass; the gradients are made anew each time."""
    def work() -> None:
        model.zero_grad(set_to_none=True)
        with AUTOCAST:
            value = loss()
        value.backward()

    return work


def contestants(pairs: Pairs) -> dict[str, Work]:
    """The same pairs for each: padded rows for both, and packed for ours."""
    model, peer = ours().train(), theirs()
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    (source, source_lengths), (target, target_lengths) = padded(sources), padded(targets)
    there = torch.arange(target.shape[1], device=DEVICE) < target_lengths.unsqueeze(-1)
    labels = target.masked_fill(~there, IGNORED)
    packed_source = regard.PackedTokens.of(sources).to(DEVICE)
    packed_target = regard.PackedTokens.of(targets).to(DEVICE)
    packed_labels = packed_target.ids[0]

    def ours_padded() -> Tensor:
        logits = model(regard.Tokens(source, source_lengths), regard.Tokens(target, target_lengths))
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def ours_packed() -> Tensor:
        return cross_entropy(model(packed_source, packed_target)[0], packed_labels)

    works = {}
    if peer is not None:
        peer.train()
        assert sum(p.numel() for p in peer.parameters()) - 2 * 512 * 512 == sum(p.numel() for p in model.parameters())
        mask = (torch.arange(source.shape[1], device=DEVICE) < source_lengths.unsqueeze(-1)).long()

        def theirs_padded() -> Tensor:
            return peer(input_ids=source, attention_mask=mask, decoder_input_ids=target, labels=labels).loss

        works["transformers, padded"] = training_work(peer, theirs_padded)
    works["regard, padded"] = training_work(model, ours_padded)
    works["regard, packed"] = training_work(model, ours_packed)
    return works


def training() -> str:
    """Forward and backward, padded and packed, batches as drawn and sorted by length."""
    rows = []
    for ordered in (False, True):
        pairs = drawn(PAIRS, ordered=ordered)
        real = sum(len(source) + len(target) for source, target in pairs)
        places = PAIRS * (max(len(s) for s, _ in pairs) + max(len(t) for _, t in pairs))
        times = medians(contestants(pairs), device=DEVICE, repeats=15 if DEVICE == "cuda" else 5)
        base = times.get("transformers, padded")
        rows += [["sorted" if ordered else "as drawn", name, f"{1 - real / places:.0%}" if "padded" in name else "0%",
                  f"{taken:,.1f}", f"{real / taken * 1e3:,.0f}", "" if base is None else f"{base / taken:.2f}"]
                 for name, taken in times.items()]
    header = ["batches", "model", "padding", "ms", "tokens/s (source and target)", "speed against transformers"]
    return f"Forward and backward, Transformer-base, {PAIRS} pairs\n\n" + table(header, rows)


def decoding() -> str:
    """Greedy, step by step, with caches."""
    rows = []
    for count in (1, PAIRS):
        model, peer = ours().eval(), theirs()
        source, lengths = padded([source for source, _ in drawn(count, ordered=False)])
        tokens = regard.Tokens(source, lengths)

        def mine(model: nn.Module = model, tokens: regard.Tokens = tokens, count: int = count) -> None:
            with torch.inference_mode(), AUTOCAST:
                greedy(model, model.encode(tokens), prompts=[[0]] * count, end=(), max_length=WRITTEN)

        works: dict[str, Work] = {"regard": mine}
        if peer is not None:
            peer.eval()
            mask = (torch.arange(source.shape[1], device=DEVICE) < lengths.unsqueeze(-1)).long()

            def other(peer: nn.Module = peer, source: Tensor = source, mask: Tensor = mask) -> None:
                with torch.inference_mode(), AUTOCAST:
                    peer.generate(input_ids=source, attention_mask=mask, num_beams=1, do_sample=False,
                                  min_new_tokens=WRITTEN, max_new_tokens=WRITTEN)

            works["transformers"] = other
        times = medians(works, device=DEVICE, repeats=7 if DEVICE == "cuda" else 5)
        base = times.get("transformers")
        rows += [[str(count), name, f"{taken:,.0f}", f"{count * WRITTEN / taken * 1e3:,.0f}",
                  "" if base is None else f"{base / taken:.2f}"] for name, taken in times.items()]
    return (f"Greedy decoding, Transformer-base, {WRITTEN} tokens a sentence\n\n"
            + table(["sentences", "model", "ms", "tokens/s", "speed against transformers"], rows))


if __name__ == "__main__":
    torch.set_flush_denormal(True)
    main({"training": training, "decoding": decoding}, __doc__, __file__, DEVICE)
