import OpenAI from "openai";

import { answerTokens, forever, key, model, pet, question, result, run, url, weather } from "./rounds.mjs";

const make = (apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const chat = make(key).chat.completions;
const said = (content) => [{ role: "user", content }];
const tools = [{ type: "function", function: { name: "weather", description: "Tells the weather.", parameters: weather } }];

await run({
  async stream() {
    const pieces = [];
    for await (const chunk of await chat.create({ model, messages: said(question), temperature: 0, stream: true })) {
      const text = chunk.choices[0].delta.content;
      if (text) pieces.push(text);
    }
    return pieces;
  },

  async toolRound() {
    const calls = [];
    const runner = chat.runTools({
      model,
      messages: said(question),
      temperature: 0,
      tools: [
        {
          type: "function",
          function: {
            ...tools[0].function,
            parse: JSON.parse,
            function: (given) => {
              calls.push(given);
              return result;
            },
          },
        },
      ],
    });
    return { answer: await runner.finalContent(), calls };
  },

  async structured() {
    const form = { type: "json_schema", json_schema: { name: "pet", strict: true, schema: pet } };
    const fields = { model, messages: said(question), temperature: 0, max_tokens: answerTokens };
    const answer = await chat.parse({ ...fields, response_format: form });
    return JSON.parse(answer.choices[0].message.content);
  },

  async ask({ text, model, key, temperature }) {
    await make(key).chat.completions.create({ model, messages: said(text), temperature });
  },

  async leave() {
    const stream = await chat.create({ model, messages: said(forever), temperature: 0, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content) {
        stream.controller.abort();
        return chunk.choices[0].delta.content;
      }
    }
  },
});
