// A small engine in Lockstep's protocol. It reads files, and runs llama models with F32 weights.
//     lockstep smoke -- node engine.mjs
//     lockstep check model.gguf --engine "node engine.mjs"
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const NAMES = ["U8", "I8", "U16", "I16", "U32", "I32", "F32", "BOOL", "STR", "ARR", "U64", "I64", "F64"];
const READ = {
  U8: ["readUInt8", 1], I8: ["readInt8", 1], BOOL: ["readUInt8", 1], U16: ["readUInt16LE", 2],
  I16: ["readInt16LE", 2], U32: ["readUInt32LE", 4], I32: ["readInt32LE", 4], F32: ["readFloatLE", 4],
  U64: ["readBigUInt64LE", 8], I64: ["readBigInt64LE", 8], F64: ["readDoubleLE", 8],
};
const TYPES = { 0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K" };

class File {
  constructor(path) {
    this.raw = readFileSync(path);
    this.at = 4; // after the letters GGUF
    this.version = this.u32();
    const [tensors, keys] = [this.u64(), this.u64()];
    this.metadata = {};
    for (let i = 0; i < keys; i++) this.metadata[this.text()] = this.value(this.u32());
    this.tensors = [];
    while (this.tensors.length < tensors) {
      const name = this.text(), ne = range(this.u32()).map(() => this.u64()), type = this.u32();
      this.tensors.push({ name, ne, type: TYPES[type] ?? `${type}`, offset: this.u64() });
    }
    this.alignment = this.metadata["general.alignment"]?.[1] ?? 32;
    this.data_offset = Math.ceil(this.at / this.alignment) * this.alignment;
  }
  move(n) { this.at += n; return this.at - n; }
  u32() { return this.raw.readUInt32LE(this.move(4)); }
  u64() { return Number(this.raw.readBigUInt64LE(this.move(8))); }
  text() { const n = this.u64(); return this.raw.toString("utf8", this.move(n), this.at); }
  value(kind) {
    const name = NAMES[kind];
    if (name !== "ARR") return [name, this.item(name)];
    const item = NAMES[this.u32()];
    return [`ARR[${item}]`, Array.from({ length: this.u64() }, () => this.item(item))];
  }
  item(name) {
    if (name === "STR") return this.text();
    const [read, size] = READ[name], value = this.raw[read](this.move(size));
    if (name === "BOOL") return value !== 0;
    return typeof value === "bigint" ? Number(value) : finite(value); // exact below 2^53
  }
  weights(name) {
    const t = this.tensors.find((tensor) => tensor.name === name);
    if (!t || t.type !== "F32") throw new Error(`${name}: ${t?.type ?? "not there"}, not F32`);
    const start = this.raw.byteOffset + this.data_offset + t.offset;
    const size = t.ne.reduce((a, b) => a * b);
    return new Float32Array(this.raw.buffer.slice(start, start + 4 * size));
  }
}

const finite = (x) => (Number.isNaN(x) ? "nan" : Number.isFinite(x) ? x : x > 0 ? "inf" : "-inf");
const range = (n) => Array.from({ length: n }, (_, i) => i);

class Llama {
  constructor(file) {
    const key = (name, other) => file.metadata[`llama.${name}`]?.[1] ?? other;
    [this.width, this.heads] = [key("embedding_length"), key("attention.head_count")];
    [this.layers, this.kv] = [key("block_count"), key("attention.head_count_kv", this.heads)];
    this.eps = key("attention.layer_norm_rms_epsilon");
    [this.base, this.size] = [key("rope.freq_base", 10000), this.width / this.heads];
    this.w = Object.fromEntries(file.tensors.map((t) => [t.name, file.weights(t.name)]));
    this.head = this.w["output.weight"] ?? this.w["token_embd.weight"];
  }
  norm(x, weight) {
    const scale = 1 / Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / x.length + this.eps);
    return x.map((v, i) => v * scale * weight[i]);
  }
  product(x, weight) {
    const out = new Float32Array(weight.length / x.length);
    for (let row = 0; row < out.length; row++) {
      let sum = 0;
      for (let i = 0; i < x.length; i++) sum += x[i] * weight[row * x.length + i];
      out[row] = sum;
    }
    return out;
  }
  rope(x, position) { // rotates pairs of neighbours
    for (let i = 0; i < x.length; i += 2) {
      const angle = position / this.base ** ((i % this.size) / this.size);
      const [a, b, cos, sin] = [x[i], x[i + 1], Math.cos(angle), Math.sin(angle)];
      [x[i], x[i + 1]] = [a * cos - b * sin, a * sin + b * cos];
    }
    return x;
  }
  attention(q, cells) {
    const out = new Float32Array(q.length);
    for (const head of range(this.heads)) {
      const at = head * this.size, from = Math.floor(head / (this.heads / this.kv)) * this.size;
      const dot = (k) => range(this.size).reduce((sum, i) => sum + q[at + i] * k[from + i], 0);
      const scores = cells.map((cell) => dot(cell.k) / Math.sqrt(this.size));
      const most = Math.max(...scores), p = scores.map((score) => Math.exp(score - most));
      const total = p.reduce((a, b) => a + b, 0);
      cells.forEach(({ v }, c) => range(this.size).forEach((i) => { out[at + i] += (p[c] / total) * v[from + i]; }));
    }
    return out;
  }
  token(id, position, sequence, caches) { // returns the logits after one token
    let x = this.w["token_embd.weight"].slice(id * this.width, (id + 1) * this.width);
    const add = (y) => { x = x.map((value, i) => value + y[i]); };
    caches.forEach((cache, layer) => {
      const w = (name) => this.w[`blk.${layer}.${name}.weight`];
      const h = this.norm(x, w("attn_norm"));
      const k = this.rope(this.product(h, w("attn_k")), position);
      cache.push({ k, v: this.product(h, w("attn_v")), position, sequence });
      const seen = cache.filter((cell) => cell.sequence === sequence && cell.position <= position);
      add(this.product(this.attention(this.rope(this.product(h, w("attn_q")), position), seen), w("attn_output")));
      const f = this.norm(x, w("ffn_norm")), up = this.product(f, w("ffn_up"));
      const gate = this.product(f, w("ffn_gate")).map((g, i) => (g / (1 + Math.exp(-g))) * up[i]);
      add(this.product(gate, w("ffn_down")));
    });
    return this.product(this.norm(x, this.w["output_norm.weight"]), this.head);
  }
  run(batches, caches = range(this.layers).map(() => [])) {
    return batches.map(({ tokens, positions, sequences, outputs }) => tokens
      .map((id, i) => this.token(id, positions[i], sequences[i], caches)).filter((_, i) => outputs[i]));
  }
  greedy(prompt, n) {
    const caches = range(this.layers).map(() => []), ids = [];
    for (let next = prompt, at = 0; ids.length < n; at += next.length, next = [ids.at(-1)]) {
      const logits = next.map((id, i) => this.token(id, at + i, 0, caches)).at(-1);
      ids.push(logits.indexOf(logits.reduce((a, b) => Math.max(a, b))));
    }
    return ids;
  }
}

// --- the protocol: a question is a line of JSON, and an answer is a line and then its arrays
let model, file;
const answers = {
  start({ model: path }) {
    file = path ? new File(path) : undefined;
    return [{ protocol: 1, engine: "example", version: "1", text: "utf8", can: ["parse", "greedy", "logits"] }, []];
  },
  parse: () => [{ ...file, raw: undefined }, []],
  greedy: ({ prompt, n }) => [{ ids: (model ??= new Llama(file)).greedy(prompt, n) }, []],
  logits: ({ batches }) => [{}, (model ??= new Llama(file)).run(batches)],
};
for await (const line of createInterface({ input: process.stdin })) {
  const question = JSON.parse(line), head = { id: question.id };
  let rows = [];
  try { [head.answer, rows] = answers[question.ask](question); } catch (error) { head.failed = `${error}`; }
  head.arrays = rows.map((batch, i) => [`logits${i}`, "f32", [batch.length, model.head.length / model.width]]);
  process.stdout.write(JSON.stringify(head) + "\n");
  for (const row of rows.flat()) process.stdout.write(new Uint8Array(row.buffer));
}
