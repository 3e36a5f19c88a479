// hyllama: a GGUF reader without dependencies. It returns neither types of keys nor data offsets.
import { readFileSync } from "node:fs";
import { engine, json, serve } from "./answering.mjs";

const { ggufMetadata, version } = await engine();
const OWN = ["version", "tensorCount"]; // keys that the library adds

await serve(async (path) => {
  const parse = () => {
    const raw = readFileSync(path);
    const whole = raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length);
    const { metadata } = ggufMetadata(whole);
    const keys = Object.entries(metadata).filter(([key]) => !OWN.includes(key));
    return {
      version: metadata.version,
      metadata: Object.fromEntries(keys.map(([key, value]) => [key, [null, json(value)]])),
    };
  };
  return [{ engine: "hyllama", version }, { parse }];
});
