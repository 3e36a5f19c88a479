// node-llama-cpp: a binding of llama.cpp for Node.js, with its own GGUF reader.
import { engine, fromBase64, json, serve, toBase64, Unsupported } from "./answering.mjs";

const { getLlama, readGgufFileInfo, version } = await engine();
const GREEDY = { token: true, options: { temperature: 0 } };

// Its reader turns dots in keys into nested objects: "a.b" becomes {a: {b: ...}}.
function flat(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    return [[prefix.slice(1), [null, json(value)]]];
  }
  return Object.entries(value).flatMap(([key, inside]) => flat(inside, `${prefix}.${key}`));
}

await serve((path, settings) => {
  const load = async () => {
    const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
    return llama.loadModel({ modelPath: path, gpuLayers: 0 });
  };
  let loading = null;
  const model = () => (loading ??= load());

  // Each question uses a new context, so that its cache is empty.
  const inContext = async (work) => {
    const context = await (
      await model()
    ).createContext({
      contextSize: settings.n_ctx,
      batchSize: settings.n_ubatch,
      threads: settings.n_threads,
      flashAttention: settings.flash_attn,
      experimentalKvCacheKeyType: settings.type_k,
      experimentalKvCacheValueType: settings.type_v,
    });
    try {
      return await work(context.getSequence());
    } finally {
      await context.dispose();
    }
  };

  const parse = async () => {
    const info = await readGgufFileInfo(path, { readTensorInfo: true, logWarnings: false });
    return { version: info.version, metadata: Object.fromEntries(flat(info.metadata)) };
  };

  const tokenize = async (question) => {
    if (question.add_special) throw new Unsupported("BOS and EOS are up to who calls it");
    const loaded = await model();
    const texts = fromBase64(question.texts);
    return { ids: texts.map((text) => loaded.tokenize(text, question.parse_special)) };
  };

  const detokenize = async (question) => {
    if (question.remove_special) throw new Unsupported("it does not remove BOS and EOS");
    const loaded = await model();
    const pieces = question.ids.map((ids) => loaded.detokenize(ids, question.unparse_special));
    return { texts: toBase64(pieces) };
  };

  const greedy = (question) =>
    inContext(async (sequence) => {
      const ids = [];
      // its own loop would stop at an end-of-text token
      for (let next = question.prompt; ids.length < question.n; next = ids.slice(-1)) {
        const steps = next.map((id, i) =>
          i === next.length - 1 ? [id, { generateNext: GREEDY }] : id,
        );
        ids.push((await sequence.controlledEvaluate(steps)).at(-1).next.token);
      }
      return { ids };
    });

  const logits = (question, show) =>
    inContext(async (sequence) => {
      const every = [];
      for (const batch of question.batches) {
        if (batch.encoder || new Set(batch.sequences).size > 1) {
          throw new Unsupported("an encoder, or several sequences");
        }
        const wanted = { generateNext: { ...GREEDY, logits: true } };
        const steps = batch.tokens.map((id, i) => (batch.outputs[i] ? [id, wanted] : id));
        const found = (await sequence.controlledEvaluate(steps)).filter((each) => each);
        every.push(found.map(({ next }) => next.logits));
      }
      const width = every.flat()[0]?.size ?? 0; // a batch may have no outputs
      for (const [number, rows] of every.entries()) {
        const values = new Float32Array(rows.length * width);
        rows.forEach((row, i) => row.forEach((logit, id) => (values[i * width + id] = logit)));
        show(`logits${number}`, [rows.length, width], values);
      }
      return {};
    });

  const answers = path === null ? {} : { parse, tokenize, detokenize, greedy, logits };
  return [{ engine: "node-llama-cpp", version, text: "utf8" }, answers];
});
