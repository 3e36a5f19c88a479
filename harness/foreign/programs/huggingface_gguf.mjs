// @huggingface/gguf: the GGUF reader of Hugging Face's website.
import { engine, json, serve } from "./answering.mjs";

const { gguf, version, GGUFValueType, GGMLQuantizationType } = await engine();
const SHORT = { UINT: "U", INT: "I", FLOAT: "F", STRING: "STR" };
const OWN = ["version", "tensor_count", "kv_count"]; // keys that the library adds

function kind(type) {
  const name = GGUFValueType[type];
  return name.replace(/^(UINT|INT|FLOAT|STRING)/, (word) => SHORT[word]);
}

await serve(async (path) => {
  const parse = async () => {
    const options = { allowLocalFile: true, typedMetadata: true };
    const { metadata, typedMetadata, tensorInfos, tensorDataOffset } = await gguf(path, options);
    const keys = Object.entries(typedMetadata).filter(([key]) => !OWN.includes(key));
    return {
      version: metadata.version,
      alignment: metadata["general.alignment"] ?? 32,
      data_offset: tensorDataOffset,
      metadata: Object.fromEntries(
        keys.map(([key, { value, type, subType }]) => [
          key,
          [subType === undefined ? kind(type) : `ARR[${kind(subType)}]`, json(value)],
        ]),
      ),
      tensors: tensorInfos.map(({ name, shape, dtype, offset }) => ({
        name,
        type: GGMLQuantizationType[dtype] ?? `type ${dtype}`,
        ne: shape,
        offset,
      })),
    };
  };
  return [{ engine: "@huggingface/gguf", version }, { parse }];
});
