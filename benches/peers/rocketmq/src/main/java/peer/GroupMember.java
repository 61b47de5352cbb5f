package peer;

import java.io.PrintStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group, to stand beside Keylane's. Prints a line for each message when it was
 * handled: the queue's number and the offset. It leaves the group, says so with the line "left", and
 * ends when its standard input does.
 *
 * <p>Arguments: NAME_SERVER TOPIC GROUP WORK_MILLIS.
 */
public final class GroupMember {
  public static void main(String[] args) throws Exception {
    if (args.length != 4) {
      System.err.println("wanted: NAME_SERVER TOPIC GROUP WORK_MILLIS");
      System.exit(2);
    }
    long work = Long.parseLong(args[3]);
    PrintStream out = new PrintStream(System.out, true);
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
    consumer.setNamesrvAddr(args[0]);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setConsumeMessageBatchMaxSize(1);
    // What is handled when it leaves is finished, and its offset stored.
    consumer.setAwaitTerminationMillisWhenShutdown(10_000);
    consumer.subscribe(args[1], "*");
    consumer.registerMessageListener(
        (MessageListenerOrderly)
            (batch, context) -> {
              for (MessageExt message : batch) {
                try {
                  Thread.sleep(work);
                } catch (InterruptedException interrupted) {
                  Thread.currentThread().interrupt();
                  return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                out.println(message.getQueueId() + " " + message.getQueueOffset());
              }
              return ConsumeOrderlyStatus.SUCCESS;
            });
    consumer.start();
    while (System.in.read() >= 0) {}
    consumer.shutdown();
    out.println("left");
    System.exit(0);
  }
}
