"""Agent-aware attention: a layer for the tokens of several agents (AgentFormer, Yuan et al. 2021).

Tokens are (time, agent). A token attends to its own agent by one pair of projections, and to all others by another:

    Q_s = X W_Qs   K_s = X' W_Ks      same agent
    Q_o = X W_Qo   K_o = X' W_Ko      other agents
    A   = M ∘ Q_s K_sᵀ + (1 - M) ∘ Q_o K_oᵀ,   M_ij = 1 where tokens i and j are of the same agent
    Y   = [softmax(A / √D + mask) X' W_V of every head] W_O

The layer gives the agents of its tokens to the score as features of queries and keys (`AgentAware`), so masks, empty
rows, gradients, backends, caches and taps are those of `Attention`. Where both pairs of projections are equal, it is
`Attention`. The original code ignores padding in this layer; here padding is masked like everywhere.

Legend: B rows, H heads, N tokens, D width.
"""

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.cache import Cache, ContextCache
from regard.attention.layer import Attention, split_heads
from regard.attention.mask import Mask, Padding, as_mask
from regard.attention.mask_cache import broadcast_over_heads, present_tokens, zero_absent
from regard.attention.normalize import NormalizerLike
from regard.attention.score import MAX_AGENTS, SCORES, AgentAware, Dot, ScoreLike, adjust_score, with_agents
from regard.kernels.launch import is_readable
from regard.kernels.linear import Linear, apply_jointly


class AgentAwareAttention(Attention):
    """Multi-head attention with one pair of query and key projections for the same agent and one for other agents.

        Y = [softmax(M ∘ Q_s K_sᵀ + (1 - M) ∘ Q_o K_oᵀ) X' W_V of every head] W_O

    Args:
        width: the width of x and of the output.
        heads, key_heads, context_width, head_width, value_width, normalize, bias, qkv_bias, dropout, backend: as for
            `Attention`.
        score: "scaled_dot", "dot" or "scaled_dot_d".
        scale, softcap: as for `attend`.

    Example:
        import torch
        import regard

        layer = regard.AgentAwareAttention(32, heads=4)
        x = torch.randn(2, 12, 32)                              # 2 scenes of 3 agents × 4 steps, time-major
        assert layer(x, agents=torch.arange(12) % 3).shape == (2, 12, 32)
    """

    def __init__(self, width: int, *, heads: int, key_heads: int | None = None, context_width: int | None = None,
                 head_width: int | None = None, value_width: int | None = None, score: ScoreLike = "scaled_dot",
                 scale: float | None = None, softcap: float | None = None, normalize: NormalizerLike = "softmax",
                 bias: bool = True, qkv_bias: bool | None = None, dropout: float = 0.0,
                 backend: str | None = None) -> None:
        if not (isinstance(score, str) and score in SCORES):
            raise checks.wrong("score", f"one of {', '.join(SCORES)}", repr(score))
        super().__init__(width, heads=heads, key_heads=key_heads, context_width=context_width, head_width=head_width,
                         value_width=value_width, score=score, normalize=normalize, bias=bias, qkv_bias=qkv_bias,
                         dropout=dropout, backend=backend)
        self.query_other = Linear(width, self.query.out_features, self.query.bias is not None)
        self.key_other = Linear(self.context_width, self.key.out_features, self.key.bias is not None)
        for linear in (self.query_other, self.key_other):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        dot = adjust_score(SCORES[score], scale)
        assert isinstance(dot, Dot)
        self._score = adjust_score(AgentAware(dot), softcap=softcap)

    @property
    def score(self) -> ScoreLike:
        return self._score

    def agent_queries(self, x: Tensor, agents: Tensor | None) -> Tensor:
        """(B, N, width) and the agents (N,) or (B, N) -> (B, H, N, 2D + 2)."""
        same, other = self._project(x, (self.query, self.query_other))
        return with_agents(split_heads(same, self.heads), split_heads(other, self.heads),
                           self._agents("agents", agents, x))

    def agent_keys(self, context: Tensor, agents: Tensor | None, argument: str = "agents") -> tuple[Tensor, Tensor]:
        """(B, N, context width) and the agents -> keys (B, key heads, N, 2D + 2), values (B, key heads, N, D)."""
        same, other, value = (split_heads(part, self.key_heads) for part in self._project(
            context, (self.key, self.key_other, self.value)))
        return with_agents(same, other, self._agents(argument, agents, context)), value

    def queries(self, x: Tensor) -> Tensor:
        return self.agent_queries(x, None)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        return self.agent_keys(context, None)

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | Tensor | None = None,
                positions: Tensor | None = None, agents: Tensor | None = None, context_agents: Tensor | None = None,
                bias: Tensor | None = None) -> Tensor:
        """Compute self-attention of x, or attention from x to the context: (B, N, width) -> (B, N, width).

        Args:
            mask: a mask, or a bool tensor (N, M), (B, N, M) or (B, heads, N, M) in which True means may attend.
            positions: None; this layer has no rotary positions.
            agents: the agent of each token of x, (N,) or (B, N): integers from 0 to 65,535. By default all tokens are
                of one agent.
            context_agents: the agent of each token of the context.
            bias: added to the scores: a tensor that broadcasts to (B, heads, N, M).
        """
        if positions is not None:
            raise checks.wrong("positions", "None: agent-aware attention has no rotary positions", "given")
        self._check_inputs(x, context)
        if context is None:
            if context_agents is not None:
                raise checks.wrong("context_agents", "None without a context", "given")
            context, context_agents, argument = x, agents, "agents"
        else:
            argument = "context_agents"
            if isinstance(mask, Padding):  # projections of NaN would give their weights NaN gradients
                context = zero_absent(context, present_tokens(context, mask, "mask"))
        query, (key, value) = self.agent_queries(x, agents), self.agent_keys(context, context_agents, argument)
        allowed = None if mask is None else broadcast_over_heads(as_mask(mask), x.dim())
        return self.finish(self.attend_heads(query, key, value, allowed, bias), x)

    def remember(self, context: Tensor, lengths: Tensor | None = None, *, agents: Tensor | None = None) -> ContextCache:
        """Compute the keys and values of a context once, for many steps.

        Args:
            context: (B, M, context width).
            lengths: the number of tokens of each row, (B,); M by default.
            agents: the agent of each token, (M,) or (B, M); by default all are of one agent.
        """
        self._check_context(context)
        if lengths is not None:
            context = zero_absent(context, present_tokens(context, Padding(lengths), "lengths"))
        return ContextCache.of(*self.agent_keys(context, agents), lengths)

    def step(self, x: Tensor, state: "Cache | ContextCache", *, mask: Mask | Tensor | None = None,
             lengths: Tensor | None = None, agents: Tensor | None = None) -> "tuple[Tensor, Cache | ContextCache]":
        """Compute attention of the next token or chunk, x (B, N, width); it consumes the state and returns the next.

        Args:
            mask, lengths: as for `Attention`.
            agents: the agent of each new token, (N,) or (B, N); by default all are of one agent.
        """
        self._check_inputs(x, None)
        extra = None if mask is None else broadcast_over_heads(as_mask(mask), x.dim())
        query = self.agent_queries(x, agents)
        if isinstance(state, ContextCache):
            return self.finish(self._attend_context(query, state, extra), x), state
        key, value = self.agent_keys(x, agents)
        both, state = state.step_mask(x.shape[-2], lengths, extra), state.extend(key, value, lengths)
        return self.finish(self.attend_heads(query, *state.view(state.filled), both), x), state

    def _project(self, x: Tensor, linears: tuple[Linear, ...]) -> tuple[Tensor, ...]:
        """The projections of x, in one product where nothing watches them."""
        return tuple(linear(x) for linear in linears) if self.tap.listeners else tuple(apply_jointly(x, linears))

    def _agents(self, argument: str, agents: Tensor | None, x: Tensor) -> Tensor:
        """The agents of the tokens, broadcastable to (B, 1, N); a ValueError where they are not agents of x."""
        if agents is None:
            return torch.zeros(x.shape[-2], dtype=torch.long, device=x.device)
        if not isinstance(agents, Tensor) or agents.is_floating_point() or agents.dtype == torch.bool:
            raise checks.wrong(argument, "a tensor of integers", *(
                [f"of dtype {agents.dtype}"] if isinstance(agents, Tensor) else checks.kind(agents)))
        if tuple(agents.shape) not in ((x.shape[-2],), tuple(x.shape[:-1])):
            raise checks.wrong(argument, f"of shape ({x.shape[-2]},) or {tuple(x.shape[:-1])}, one for each token",
                               f"of shape {checks.shape(agents)}")
        if is_readable(agents) and agents.numel() and not 0 <= int(agents.min()) <= int(agents.max()) < MAX_AGENTS:
            worst = int(agents.min()) if int(agents.min()) < 0 else int(agents.max())
            raise checks.wrong(argument, f"numbers from 0 to {MAX_AGENTS - 1:,}", worst)
        return agents if agents.dim() == 1 else agents.unsqueeze(-2)
