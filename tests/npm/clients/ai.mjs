import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

import { answerTokens, forever, key, model, pet, question, result, run, url, weather } from "./rounds.mjs";

const make = (apiKey) =>
  createOpenAICompatible({ name: "localinfer", baseURL: `${url}/v1`, apiKey, supportsStructuredOutputs: true });
const fields = { model: make(key)(model), temperature: 0, maxOutputTokens: answerTokens, maxRetries: 0 };
const fail = ({ error }) => {
  throw error;
};

await run({
  async stream() {
    const pieces = [];
    for await (const text of streamText({ ...fields, prompt: question, onError: fail }).textStream) pieces.push(text);
    return pieces;
  },

  async toolRound() {
    const calls = [];
    const execute = async (given) => {
      calls.push(given);
      return result;
    };
    const tools = { weather: tool({ description: "Tells the weather.", inputSchema: jsonSchema(weather), execute }) };
    const stream = streamText({ ...fields, prompt: question, tools, stopWhen: stepCountIs(3), onError: fail });
    return { answer: await stream.text, calls };
  },

  async structured() {
    const { output } = await generateText({
      ...fields,
      prompt: question,
      output: Output.object({ schema: jsonSchema(pet) }),
    });
    return output;
  },

  async ask({ text, model, key, temperature }) {
    await generateText({ ...fields, model: make(key)(model), temperature, prompt: text });
  },

  async leave() {
    const leaving = new AbortController();
    const stream = streamText({ ...fields, maxOutputTokens: 1000, prompt: forever, abortSignal: leaving.signal });
    for await (const text of stream.textStream) {
      leaving.abort();
      return text;
    }
  },
});
