// Types that the modules of the page share. Only the type checker reads this file; it is not part of the page.

/** The word text[start:end], in code points, consists of the tokens first..last. */
interface Word { start: number; end: number; first: number; last: number }
interface Side {
  tokens: string[]; text?: string; words?: Word[]; grid?: [number, number]; lead?: number;
  /** Base64 of height × width × channels bytes. */
  image?: { height: number; width: number; channels: number; pixels: string };
}
/** What each token of the output loses, in nats, when the tokens of a column are left out. */
interface Influence { rows: string; columns: string; tokens: number[][]; values: (number | null)[][] }
/** How probable each token of a side was, and the most probable ones at each place; one row more is what comes next. */
interface Predictions {
  side: string; log_probabilities: (number | null)[]; candidates?: string[][];
  candidate_log_probabilities?: number[][];
}
/** What one row or column of a map stands for: the tokens first..last, the word they make up, and the name to show. */
interface Unit { name: string; first: number; last: number; word: number | null }
type Mask = "causal" | "tensor" | { left: number | null; right: number | null } | null;

/** Block means, as half-precision parts of a unit; the last blocks may hold fewer cells than the others. */
interface Overview { size: number; rows: number; columns: number; unit?: number; values: string }
type Data =
  | { kind: "weights"; values: string }
  | {
      kind: "projected"; query: string; key: string; scale: number; normalizer: string; width: number;
      key_heads: number; mask?: Mask; overview?: Overview;
      /** The bits of a query or key, which is a whole multiple of a step: one for each head of queries, and of keys. */
      bits: number; steps: [number[], number[]];
      /** How far weights of these rounded numbers are from those that were used, at most, in rows from everywhere. */
      error?: number;
    }
  | ({ kind: "overview" } & Overview)
  | { kind: "overview"; overview: Overview }
  | { kind: "served" };
interface Attention {
  name: string; layer?: number | null; kind?: string | null; queries: string; keys: string; heads: number;
  score?: string; normalize?: string; mask?: Mask; data: Data;
}
/** One node of a beam search. */
interface SearchNode {
  parent: number; token: string; log_probability: number; total: number; ended: boolean; kept: boolean;
  /** Of an ended node: the number that results are ranked by. */
  score?: number;
}
interface Search { beams: number; nodes: SearchNode[]; best: number[]; left_out?: number; ranked_by?: string }
/** One head of the model, over many sentences: its cost in nats, and the mean weight on the places of each role. */
interface MeasuredHead { cost: number; cost_error: number; role?: string; roles: Record<string, number> }
interface MeasuredHeads {
  data: string; sentences: number; loss: number;
  /** `even` has the scores of a head that attends to all tokens alike. */
  attentions: { name: string; even: Record<string, number>; heads: MeasuredHead[] }[];
}
interface Written { side: string; log_probabilities: number[]; score?: number | null }
interface Pointer { attention: number; head?: number | null; offset?: number }
interface Trace {
  title?: string; model?: string; sides: Record<string, Side>; attentions: Attention[];
  written?: Written | null; alignment?: Pointer | null; search?: Search | null; influence?: Influence | null;
  heads?: MeasuredHeads | null;
  predictions?: Predictions | null;
  /** Of a served page: whether the influence of single words can be asked for, and the number to ask with. */
  refines?: boolean; number?: number;
}
/** What stands in the page as JSON. `asks` says that a model can be asked, `file` what to give to `regard look`. */
interface Page { version: number; served: boolean; asks?: boolean; title: string; file?: string; traces: Trace[] }

/** A rectangle of tokens: rows top..top+rows, columns left..left+columns. */
interface Region { top: number; left: number; rows: number; columns: number }
/** Means of blocks of size × size cells, row after row; with size 1, the weights themselves. */
interface Block { rows: number; columns: number; size: number; values: Float32Array }
/** Where weights come from. */
interface Source { map(trace: number, attention: number, head: number, region: Region, size: number): Promise<Block> }

/** The matrix of one chart, and the names of its rows and columns. */
interface Plane {
  name: string;
  /** The same in the words of Python, where they differ. */
  code?: string;
  rows: number;
  columns: number;
  /** The available block sizes, ascending. */
  levels: number[];
  /** Whether numbers may be negative even if none is known yet. */
  signed: boolean;
  rowName(row: number): string;
  columnName(column: number): string;
  /** Whether a cell is masked; null if that is not known, because the mask is a tensor. */
  masked(row: number, column: number): boolean | null;
  map(region: Region, size: number): Promise<Block>;
}
interface Cell { row: number; column: number; size: number; rows: number; columns: number; value: number }
type Shape = "linear" | "root" | "log";
/** Everything that a link to the page opens again. */
type State = Record<string, string>;

/** What the page offers to its views. */
interface App {
  page: Page;
  traces: Trace[];
  source: Source;
  state: State;
  /** Change the state and the address, and draw the page again. */
  navigate(change: Partial<State>): void;
  /** Change the state and the address, without drawing. */
  updateState(change: Partial<State>): void;
  /** Announce this to screen readers. */
  announce(text: string): void;
  /** Add a trace of the model of another trace, and return its number. */
  addTrace(trace: Trace, of: number): number;
  /** The number of the original trace of the same model. */
  modelOf(trace: number): number;
  /** Run this when the view closes. */
  onClose(work: () => void): void;
}
interface View { name: string; title: string; open(app: App, room: HTMLElement): void }
