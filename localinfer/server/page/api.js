// What this page asks of the server, and what went wrong in words.

const LOST = "The server cannot be reached. It may have stopped, or the connection is gone.";

/** `status` is 0 if no answer came. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The list of models, the default one first. ServerError. */
export async function models(key) {
  const response = await call("v1/models", { headers: headers(key) });
  return (await response.json()).data;
}

/** The events of a streamed answer, as objects. ServerError; an AbortError if `signal` ends it. */
export async function* answer(body, key, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response, signal)) {
    if (data === "[DONE]") return;
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      throw new ServerError("The server sent something that is no JSON.");
    }
    if (event.error) throw new ServerError(sentence(event.error.message), response.status);
    yield event;
  }
  throw new ServerError("The connection was lost before the answer was complete.");
}

async function* events(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
    }
  } finally {
    reader.cancel().catch(() => {}); // the server stops when nobody reads
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ServerError("The connection was lost before the answer was complete.");
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError(LOST);
  }
  if (response.ok) return response;
  throw new ServerError(await words(response), response.status);
}

async function words(response) {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    message = `the server answered ${response.status} ${response.statusText}`; // a proxy's, perhaps
  }
  const wait = response.headers.get("retry-after");
  return sentence(message) + (wait ? ` It may have time in ${wait} s.` : "");
}

function sentence(text) {
  const words = String(text ?? "the server failed and does not say why");
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?)`]$/.test(words) ? "" : ".");
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}
