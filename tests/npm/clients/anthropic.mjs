import Anthropic from "@anthropic-ai/sdk";

import { answerTokens, forever, key, model, pet, question, result, run, url, weather } from "./rounds.mjs";

const make = (apiKey) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const client = make(key);
const said = (content) => [{ role: "user", content }];
const fields = { model, max_tokens: answerTokens, temperature: 0 };
const tools = [{ name: "weather", description: "Tells the weather.", input_schema: weather }];

await run({
  async stream() {
    const pieces = [];
    const stream = client.messages.stream({ ...fields, messages: said(question) });
    stream.on("text", (text) => pieces.push(text));
    await stream.finalMessage();
    return pieces;
  },

  async toolRound() {
    const messages = said(question);
    const { content } = await client.messages.create({ ...fields, messages, tools });
    const results = content.map((block) => ({ type: "tool_result", tool_use_id: block.id, content: result }));
    messages.push({ role: "assistant", content }, { role: "user", content: results });
    const final = await client.messages.create({ ...fields, messages, tools });
    return { answer: final.content[0].text, calls: content.map((block) => block.input) };
  },

  async structured() {
    const form = { format: { type: "json_schema", schema: pet } };
    const answer = await client.messages.create({ ...fields, messages: said(question), output_config: form });
    return JSON.parse(answer.content[0].text);
  },

  async ask({ text, model, key, temperature }) {
    await make(key).messages.create({ ...fields, model, temperature, messages: said(text) });
  },

  async leave() {
    const stream = await client.messages.create({ ...fields, messages: said(forever), max_tokens: 1000, stream: true });
    for await (const event of stream) {
      if (event.type === "content_block_delta") {
        stream.controller.abort();
        return event.delta.text;
      }
    }
  },
});
