// One streamed chat: the pieces of its answer as they come.

import { ApiError } from "./api.js";
import { events } from "./sse.js";

/** An id that the request is stopped by. `crypto.randomUUID` is only there on secure origins. */
export function newRequestId() {
  const random = crypto.getRandomValues(new Uint8Array(12));
  return `page-${[...random].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Ask, and hand each piece to `take`: {waiting} for a comment, {content}, {reasoning}, {finish}, {usage, timings}.
 * Throws ApiError for an error before or within the stream, and Broken for a stream without its end.
 */
export async function ask(api, body, { id, signal, take }) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await api.open("POST", "/v1/chat/completions", { body: asked, headers: { "X-Request-Id": id }, signal });
  for await (const { comment, data } of events(response)) {
    if (comment !== undefined) take({ waiting: comment });
    else if (data === "[DONE]") return;
    else chunk(JSON.parse(data), take);
  }
  throw new Broken();
}

/** The connection ended before the answer did. */
class Broken extends Error {
  constructor() {
    super("The connection ended before the answer did.");
  }
}

function chunk({ error, choices = [], usage, mlxd }, take) {
  if (error) throw new ApiError(200, error);
  for (const { delta, finish_reason } of choices) {
    if (delta.reasoning_content) take({ reasoning: delta.reasoning_content });
    if (delta.content) take({ content: delta.content });
    if (finish_reason) take({ finish: finish_reason });
  }
  if (usage) take({ usage, timings: mlxd ?? null });
  else if (mlxd) take({ timings: mlxd });
}
